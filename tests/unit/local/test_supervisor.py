"""What the supervisor writes down for other processes, and what it does with a part of Airflow that hangs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from switchyard.deadline import Deadline
from switchyard.drivers.supervisor_state import read_state, state_file
from switchyard.local import component, supervisor
from switchyard.local.component import Component
from switchyard.local.supervisor import Supervisor
from switchyard.settings import Settings
from tests.unit.local.test_airflow_api import server
from tests.waiting import eventually


def test_the_supervisor_tells_whether_it_keeps(tmp_path: Path) -> None:
    for keeps in (True, False):
        settings = Settings(root=str(tmp_path), keep_generations=keeps)
        settings.workspace.run.mkdir(parents=True, exist_ok=True)
        Supervisor(settings, demo=False)._report("starting")
        state = read_state(settings.workspace)
        assert state is not None
        assert state.keeps == keeps


def test_a_state_that_cannot_be_written_fails_a_start_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk, which must not end the supervision."""
    settings = Settings(root=str(tmp_path))
    watched = Supervisor(settings, demo=False)
    blocked = state_file(settings.workspace).with_suffix(".tmp")
    blocked.mkdir(parents=True)
    with pytest.raises(OSError, match=r"supervisor\.tmp"):
        watched._report("starting")
    for phase in ("ready", "ready", "stopping"):
        watched._report(phase)
    assert caplog.text.count("cannot be written") == 1
    blocked.rmdir()
    watched._report("ready")
    state = read_state(settings.workspace)
    assert state is not None
    assert state.phase == "ready"


HEALTH = {name: {"status": "healthy"} for name in ("metadatabase", "scheduler", "dag_processor", "triggerer")}


@pytest.mark.parametrize(
    ("changed", "is_old", "ends"),
    [
        ({"scheduler": {"status": "unhealthy"}}, True, True),
        ({"scheduler": {"status": "unhealthy"}}, False, False),
        ({"scheduler": {"status": "unhealthy"}, "metadatabase": {"status": "unhealthy"}}, True, False),
        ({}, True, False),
    ],
    ids=["silent", "just started", "without the database", "healthy"],
)
def test_a_part_that_lives_without_heartbeats_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], is_old: bool, ends: bool
) -> None:
    monkeypatch.setattr(component, "STEADY_SECONDS", 0.0 if is_old else 60.0)
    monkeypatch.setattr(component, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "HUNG_SECONDS", 0.2)
    watched = Supervisor(Settings(root=str(tmp_path)), demo=False)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    scheduler = Component("scheduler", command, os.environ, tmp_path, tmp_path / "scheduler.log")
    watched._installation.airflow = [scheduler]
    scheduler.start()
    first = scheduler.pid
    try:
        with server(document={**HEALTH, **changed}) as api:
            watched._api = api
            for _ in Deadline(0.6).polls(0.1):
                watched._end_hung_parts()
        if ends:
            eventually(lambda: scheduler.revive() and scheduler.pid != first)
        assert scheduler.is_running()
        assert (scheduler.pid != first) is ends
    finally:
        scheduler.ask_to_stop()
        scheduler.finish(5)
