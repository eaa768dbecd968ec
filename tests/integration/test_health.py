"""The health DAG beside a running stack, and a driver that hangs. Uses the stack as the tests before have left it."""

from __future__ import annotations

import os
import signal

from pyspark.sql import SparkSession

from switchyard.health import CHECKS
from switchyard.local import sessions
from switchyard.stream.audit import audit_at_newest
from tests.integration.conftest import Stack
from tests.waiting import eventually

HEALTH_DAG = "switchyard_health"


def test_a_healthy_stack_is_green_and_each_check_says_why(stack: Stack) -> None:
    eventually(lambda: stack.status()["healthy"], 90, 1)
    stack.api.trigger(HEALTH_DAG, "by-hand", {})
    eventually(lambda: stack.api.run_state(HEALTH_DAG, "by-hand") in ("success", "failed"), 120, 1)
    states = {task: stack.api.task_state(HEALTH_DAG, "by-hand", task) for task in (*CHECKS, "heal", "report")}
    assert states == dict.fromkeys((*CHECKS, "heal", "report"), "success")
    answer = stack.json("health")
    assert answer["healthy"] is True
    assert [row["check"] for row in answer["checks"]] == list(CHECKS)
    assert all(row["text"] for row in answer["checks"])


def test_a_driver_that_hangs_is_ended_by_its_task_and_started_again(stack: Stack, spark: SparkSession) -> None:
    before = stack.status()
    pid = int(stack.settings.workspace.driver_pid(before["generation"]).read_text())
    session = sessions.session_of(pid)
    assert session is not None
    for member in sessions.members([session]):
        os.kill(member, signal.SIGSTOP)
    status = eventually(
        lambda: (now := stack.status())["healthy"] and now["attempt"] > before["attempt"] and now, 240, 1
    )
    assert status["generation"] == before["generation"]
    assert sessions.members([session]) == []
    audit = audit_at_newest(lambda: spark, stack.settings)
    assert audit.is_clean, audit
