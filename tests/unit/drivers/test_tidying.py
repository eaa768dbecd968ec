"""What maintenance removes from the disk of this machine, and what it must leave to those who still use it."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from switchyard.drivers import tidying
from switchyard.drivers.processes import read_command
from switchyard.drivers.supervisor_state import ComponentState, State, write_state
from switchyard.drivers.tidying import tidy
from switchyard.layout import Workspace
from tests.waiting import eventually

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def put(path: Path, days_old: float = 0, text: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    moment = (NOW - days_old * DAY).timestamp()
    os.utime(path, (moment, moment))
    return path


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_kafka_settings_go_with_the_last_process_that_uses_them(workspace: Workspace) -> None:
    gone, mine = put(workspace.kafka_properties(1, dead_pid())), put(workspace.kafka_properties(2, os.getpid()))
    gone_order = put(workspace.kafka_properties(1, dead_pid(), "a0b1"))
    my_order = put(workspace.kafka_properties(2, os.getpid(), "a0b1"))
    orphan = put(workspace.kafka_properties(3, dead_pid()))
    other = put(workspace.secrets / "airflow-passwords.json", 900)
    driver = subprocess.Popen([sys.executable, "-c", "input()", "--generation", "3", str(orphan)], stdin=-1)
    try:
        # A process that is being started has no command line yet.
        eventually(lambda: str(orphan) in read_command(driver.pid))
        mark = put(workspace.driver_pid(3), text=str(driver.pid))
        stale = put(workspace.driver_pid(1), text=str(os.getpid()))
        done = tidy(workspace, NOW, DAY)
    finally:
        driver.kill()
        driver.communicate()
    assert (done.properties_files, done.pid_files) == (2, 1)
    assert (gone_order.exists(), my_order.exists()) == (False, True)
    assert [path.exists() for path in (gone, mine, orphan, other, mark, stale)] == [
        False,
        True,
        True,
        True,
        True,
        False,
    ]


def test_old_logs_go_and_those_that_are_written_stay(workspace: Workspace) -> None:
    runs = workspace.airflow / "logs" / "dag_id=switchyard_health"
    old = put(runs / "run_id=a" / "task_id=disk" / "attempt=1.log", 40)
    fresh = put(runs / "run_id=b" / "task_id=disk" / "attempt=1.log", 1)
    for folder in (old.parent, old.parent.parent):
        moment = (NOW - 40 * DAY).timestamp()
        os.utime(folder, (moment, moment))
    quiet, ended = put(workspace.process_logs / "broker.log", 40), put(workspace.process_logs / "audit.log", 40)
    workspace.run.mkdir()
    write_state(workspace, State(1, "boot", components={"broker": ComponentState(pid=1)}))
    planned = tidy(workspace, NOW, 30 * DAY, dry_run=True)
    assert old.exists()
    done = tidy(workspace, NOW, 30 * DAY)
    assert done == planned
    assert (done.log_files, done.freed_bytes) == (2, 8)
    assert [path.exists() for path in (old, fresh, quiet, ended)] == [False, True, True, False]
    tidy(workspace, NOW + 31 * DAY, 30 * DAY)
    assert not old.parent.exists()


def test_a_long_log_is_moved_aside_under_the_process_that_writes_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "ROTATE_BYTES", 10)
    path = put(workspace.process_logs / "scheduler.log", text="a long line\n")
    with path.open("a") as writer:
        tidy(workspace, NOW, DAY)
        writer.write("next\n")
    assert path.read_text() == "next\n"
    assert path.with_name("scheduler.log.1").read_text() == "a long line\n"


def test_folders_of_killed_jobs_go(workspace: Workspace) -> None:
    old, fresh = (put(workspace.run / name / "result.json").parent for name in ("job-a", "job-b"))
    moment = (NOW - 2 * DAY).timestamp()
    os.utime(old, (moment, moment))
    tidy(workspace, NOW, DAY)
    assert (old.exists(), fresh.exists()) == (False, True)


def test_an_installation_without_folders_is_fine(workspace: Workspace) -> None:
    assert tidy(workspace, NOW, DAY) == tidying.Tidied(0, 0, 0, 0)
