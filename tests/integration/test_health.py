"""Supervision of a running stack: runbooks, audit, health.

Uses the stack as the tests before have left it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from switchyard.health.checks import CHECKS
from switchyard.tables import store
from tests.dags.conftest import dag_files
from tests.integration.conftest import HEALTH_DAG, Stack
from tests.waiting import eventually

AUDIT_DAG = "switchyard_audit"
CONTROL_DAG = "switchyard_control"


@pytest.fixture(scope="module", autouse=True)
def health_checks(stack: Stack) -> None:
    stack.api.set_paused(HEALTH_DAG, False)


@pytest.mark.parametrize("dag_id", [path.stem for path in dag_files()])
def test_airflow_shows_the_runbook_of_each_dag(stack: Stack, dag_id: str) -> None:
    shown = stack.api._call("GET", f"/dags/{dag_id}/details")
    assert "**When it fails.**" in shown["doc_md"]
    assert shown["has_import_errors"] is False
    assert shown["is_paused"] is False


def test_an_audit_by_hand_is_clean_and_recorded(stack: Stack) -> None:
    stack.api.trigger(AUDIT_DAG, "by-hand", {})
    eventually(lambda: stack.api.run_state(AUDIT_DAG, "by-hand") in ("success", "failed"), 180, 1)
    tasks = ("compare", "records", "commands")
    states = {task: stack.task_state(AUDIT_DAG, "by-hand", task) for task in tasks}
    assert states == dict.fromkeys(tasks, "success")
    recorded = store.read_rows(stack.settings.layout, "audits")[-1]
    assert (recorded["generation"], recorded["missing"], recorded["extra"], recorded["unaccounted"]) == (
        *(stack.status()["generation"], 0, 0, 0),
    )
    assert recorded["rowsCompared"] > 0


def test_a_round_of_control_by_hand_changes_nothing_that_is_settled(stack: Stack) -> None:
    before = stack.history.ledger()
    stack.api.trigger(CONTROL_DAG, "by-hand", {})
    eventually(lambda: stack.api.run_state(CONTROL_DAG, "by-hand") in ("success", "failed"), 120, 1)
    assert stack.task_state(CONTROL_DAG, "by-hand", "take_commands") == "success"
    after = stack.history.ledger()
    assert (after.requests, after.outcomes, after.flips) == (before.requests, before.outcomes, before.flips)


def test_a_healthy_stack_is_green_and_each_check_says_why(stack: Stack) -> None:
    eventually(lambda: stack.status()["healthy"], 90, 1)
    stack.api.trigger(HEALTH_DAG, "by-hand", {})
    eventually(lambda: stack.api.run_state(HEALTH_DAG, "by-hand") in ("success", "failed"), 120, 1)
    assert stack.task_state(HEALTH_DAG, "by-hand", "check_and_repair") == "success"
    log = next((Path(stack.settings.root) / "airflow" / "logs").glob(f"dag_id={HEALTH_DAG}/run_id=by-hand/*/*.log"))
    table = json.loads(next(line for line in log.read_text().splitlines() if "Verdicts:" in line))["event"]
    assert [re.split(" {2,}", line)[1] for line in table.splitlines()[1:]] == [*CHECKS, "heal"]
    answer = stack.json("health")
    assert answer["healthy"] is True
    assert [row["check"] for row in answer["checks"]] == list(CHECKS)
    assert all(row["text"] for row in answer["checks"])
