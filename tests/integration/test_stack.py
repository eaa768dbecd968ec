"""Airflow, Kafka and Spark together, through the command line and Airflow's API. The tests share a stack, in order."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from switchyard.local import airflow_api
from switchyard.local.airflow import read_password
from switchyard.local.kafka_settings import ask_airflow
from switchyard.stream.audit import audit_at_newest
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from tests.exposition import parse
from tests.integration.conftest import DAG_ID, MESSAGES_BEFORE_BOOT, Stack
from tests.waiting import eventually


def assert_clean(stack: Stack, spark: SparkSession) -> None:
    audit = audit_at_newest(lambda: spark, stack.settings)
    assert (audit.missing, audit.extra, audit.unaccounted, audit.holes) == (0, 0, 0, 0), audit
    assert audit.rowsCompared > 0


def driver_pid(stack: Stack, generation: int) -> int:
    return int(stack.settings.workspace.driver_pid(generation).read_text())


def attempt_is_past(stack: Stack, attempt: int) -> bool:
    status = stack.status()
    return bool(status["healthy"] and status["attempt"] > attempt and status["batchId"] >= 0)


def first_run(stack: Stack) -> str:
    return f"generation-{stack.status()['generation']}"


def test_the_last_control_message_before_the_first_boot_decides(stack: Stack) -> None:
    outcomes = HistoryStore(stack.settings.layout).ledger().outcomes
    assert {name: outcomes[name].event for name in MESSAGES_BEFORE_BOOT} == {
        "early-1": Event.SUPERSEDED,
        "early-2": Event.REJECTED,
        "early-3": Event.APPLIED,
    }
    status = stack.status()
    assert (status["usersTopic"], status["accountsTopic"], status["joinType"]) == ("users", "accounts", "left")


def test_first_generation_is_active_and_its_rows_are_right(stack: Stack) -> None:
    status = stack.json("status")
    assert (status["state"], status["healthy"]) == ("ACTIVE", True)
    assert status["heartbeatAgeSeconds"] < 15
    rows = stack.json("tail", "final_ui", "--limit", "5")
    assert len(rows) == 5
    assert {row["generation"] for row in rows} == {status["generation"]}
    assert all(row["userId"].startswith("user-") for row in rows)
    assert stack.task_state(DAG_ID, first_run(stack), "stream") == "running"
    assert stack.json("doctor")["ok"] is True
    audit = stack.json("audit")
    assert (audit["clean"], audit["generation"]) == (True, status["generation"])
    assert audit["rowsCompared"] >= 5


def test_a_second_up_on_the_same_root_is_refused(stack: Stack) -> None:
    answer = stack.run("up", "--detach")
    assert answer.returncode == 1
    assert "already running" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_everything_behind_the_login_needs_it(stack: Stack) -> None:
    for path in ("/api/v2/dags", f"/api/v2/dags/{DAG_ID}/dagRuns", "/switchyard/metrics"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{stack.settings.airflow_port}{path}", timeout=10)
        with refused.value as answer:
            assert answer.code == 401


def test_actions_of_many_at_once_do_not_wait_for_each_other(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow notes an action from its event loop, and lets go there of what a request has written."""
    monkeypatch.setattr(airflow_api, "PATIENCE_SECONDS", 0.0)
    with ThreadPoolExecutor(8) as people:
        list(people.map(lambda _: stack.api.set_paused(DAG_ID, False), range(160)))


def test_prometheus_gets_the_figures_with_a_token(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.settings.airflow_port}/switchyard/metrics"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {stack.api._bearer()}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        shown = parse(answer.read().decode())
    status = stack.status()
    assert shown["switchyard_healthy"].value() == 1
    assert shown["switchyard_active_generation"].value() == status["generation"]
    assert shown["switchyard_records_read_total"].value(generation=str(status["generation"]), topic="users") > 0
    assert shown["switchyard_table_rows"].value(table="joined") > 0


def test_killed_driver_is_retried_on_its_checkpoint(stack: Stack, spark: SparkSession) -> None:
    before = stack.status()
    os.kill(driver_pid(stack, before["generation"]), signal.SIGKILL)
    eventually(lambda: attempt_is_past(stack, before["attempt"]), 120, 1)
    assert stack.status()["batchId"] >= before["batchId"]
    assert_clean(stack, spark)


def test_cleared_task_stops_its_driver_in_order_and_goes_on(stack: Stack) -> None:
    before = stack.status()
    stack.api.clear_task(DAG_ID, first_run(stack), "stream")
    eventually(lambda: attempt_is_past(stack, before["attempt"]), 120, 1)
    messages = [row["msg"] for row in stack.json("logs")]
    assert "asked to stop: the driver ends after its batch" in messages


def test_broker_that_dies_comes_back_with_its_data(stack: Stack, spark: SparkSession) -> None:
    before = stack.status()
    os.kill(int((stack.settings.workspace.broker / "broker.pid").read_text()), signal.SIGKILL)
    eventually(lambda: (now := stack.status())["healthy"] and now["batchId"] > before["batchId"] + 2, 150, 1)
    assert_clean(stack, spark)


def test_no_password_in_any_log(stack: Stack) -> None:
    secret = read_password(stack.settings.workspace).encode()
    home = Path(stack.settings.root)
    logs = [
        path for folder in ("process-logs", "airflow/logs") for path in (home / folder).rglob("*") if path.is_file()
    ]
    assert logs
    assert [path for path in logs if secret in path.read_bytes()] == []
    assert [command for command in stack.processes() if secret.decode() in command] == []


def test_the_command_line_sees_the_connection_as_a_person_has_edited_it(stack: Stack) -> None:
    path = "/connections/kafka_default"
    extra = json.loads(stack.api._call("GET", path)["extra"])

    def edit(extra: dict[str, str]) -> None:
        body = {"connection_id": "kafka_default", "conn_type": "kafka", "extra": json.dumps(extra)}
        stack.api._call("PATCH", f"{path}?update_mask=extra", body)

    edit({**extra, "client.id": "edited"})
    try:
        assert ask_airflow(stack.settings, "kafka_default") == {**extra, "client.id": "edited"}
    finally:
        edit(extra)
