"""What healing does with real tables and real processes; the drivers are stand-ins that only look like one."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from switchyard.drivers import processes
from switchyard.drivers.running_drivers import list_drivers
from switchyard.health.checks import Level
from switchyard.health.healing import heal
from switchyard.health.inputs import run_checks
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.swap import transitions
from switchyard.swap.history import Entry, Event
from switchyard.swap.log_messages import open_history
from switchyard.tables import store
from switchyard.tables.progress import Progress, report
from tests import histories
from tests.histories import write
from tests.specs import TARGET, make_settings
from tests.waiting import eventually


@pytest.fixture
def settings(layout: Layout) -> Settings:
    settings = make_settings(
        layout, hung_seconds=5, ready_deadline_seconds=0.001, min_dwell_seconds=0, heartbeat_seconds=1
    )
    activate(settings, "first")
    return settings


def activate(settings: Settings, swap_id: str) -> int:
    """A generation that was asked for, became ready and is active."""
    return histories.activate(open_history(settings.layout), swap_id, rules=settings.rules).generation


def report_at(settings: Settings, seconds_ago: float, attempt: int = 3) -> None:
    at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    report(settings.layout, Progress(1, attempt, 7, at, 0, 0.0, 0, 0, 1, 1, 1, 1, 0, 0, None, None))


@contextmanager
def stand_in(settings: Settings, generation: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the command line of a driver, in a separate session."""
    properties = settings.workspace.kafka_properties(generation, 1)
    code = "import time; time.sleep(600)"
    command = [sys.executable, "-c", code, "--generation", str(generation), "--kafka-properties", str(properties)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        eventually(lambda: list_drivers(settings.workspace))
        yield process
    finally:
        process.kill()
        process.wait()


def hurry(settings: Settings) -> Settings:
    """The same, but a flip of just now is no sign of life."""
    return settings.model_copy(update={"hung_seconds": 0.01})


def messages(settings: Settings) -> list[str]:
    return [row["msg"] for row in store.read_rows(settings.layout, "logs")]


def test_what_is_healthy_is_left_alone(settings: Settings) -> None:
    report_at(settings, 0)
    with stand_in(settings, 1) as driver:
        healing = heal(settings, lambda run_id: "running")
        assert (healing.done, healing.run, healing.verdict.level) == ([], None, Level.OK)
        assert driver.poll() is None


def test_a_hung_driver_is_ended_and_one_whose_task_is_gone_gets_a_run_once(settings: Settings) -> None:
    settings = hurry(settings)
    report_at(settings, 60)
    asked: list[str] = []

    def find_state(run_id: str) -> str | None:
        asked.append(run_id)
        return "failed"

    with stand_in(settings, 1) as driver:
        healing = heal(settings, find_state)
        assert driver.wait(10) == -9
        assert healing.run is None
        assert "hung" in healing.verdict.text
    for _ in range(2):
        run = heal(settings, find_state).run
        assert run is not None
        assert run.run_id == "generation-1-attempt-4"
        assert run.conf["swap_id"] == "first"
    assert set(asked) == {"generation-1"}
    assert heal(settings, lambda run_id: "up_for_retry").run is None
    stopped = heal(settings, lambda run_id: "success")
    assert (stopped.run, stopped.verdict.level) == (None, Level.PERSON)
    assert [line for line in messages(settings) if "hung and was ended" in line]


def test_a_driver_that_only_seems_silent_because_the_clock_was_put_forward_is_left_alone(settings: Settings) -> None:
    settings = hurry(settings)
    report_at(settings, 60)
    with stand_in(settings, 1) as driver:
        late = threading.Timer(0.7, report_at, (settings, 0))
        late.start()
        healing = heal(settings, lambda run_id: "running")
        late.join()
        assert (healing.done, driver.poll()) == ([], None)


def test_a_swap_that_nobody_works_for_fails_and_says_why(settings: Settings) -> None:
    """Its own deadline is far away, as for a long history."""
    report_at(settings, 0)
    history = open_history(settings.layout)
    write(history, Entry("never-started", Event.REQUESTED, 2, TARGET, "latest", "test"))
    patient = settings.model_copy(update={"ready_deadline_seconds": 600})
    heal(patient, lambda run_id: "running")
    assert history.ledger().open_requests != []
    hurried = settings.model_copy(update={"stuck_seconds": 0.001})
    heal(hurried, lambda run_id: "running")
    outcome = history.ledger().outcomes["never-started"]
    assert outcome.event is Event.FAILED
    assert "its driver never started; see that Airflow's scheduler runs" in outcome.detail
    assert [line for line in messages(settings) if outcome.detail in line]
    assert history.status_row().generation == 1


def test_a_driver_of_a_generation_that_is_over_is_ended(settings: Settings) -> None:
    history = open_history(settings.layout)
    assert activate(settings, "second") == 2
    request = history.ledger().find("first")
    assert request is not None
    transitions.note(history, request.entry(Event.RETIRED))
    with stand_in(settings, 1) as driver:
        assert heal(settings, lambda run_id: "running").done == []
        assert driver.poll() is None
        settings = hurry(settings)
        eventually(lambda: run_checks(settings, {}, ["drivers"])[0].level is Level.REPAIRING)
        healing = heal(settings, lambda run_id: "running")
        assert driver.wait(10) == -9
    assert "which is over" in healing.done[0]
    assert run_checks(settings, {}, ["drivers"])[0].level is Level.OK


def test_the_checks_that_need_no_broker_look_at_the_real_tables(settings: Settings) -> None:
    assert run_checks(settings, {}, ["heartbeat"])[0].level is Level.OK
    report_at(settings, 1)
    for check in ("heartbeat", "progress", "lag", "rejects", "disk", "swap", "drivers"):
        assert run_checks(settings, {}, [check])[0].level in (Level.OK, Level.WARNING), check


def test_the_age_of_a_process_is_that_of_its_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = processes.find_process(process.pid)
        assert started is not None
        time.sleep(1.1)
        assert 1 <= processes.age_seconds(started) < 60
        process.communicate(b"\n")
