"""A process that outlives its parent: its exit code, its end, its log."""

from __future__ import annotations

import os
import signal

import pytest

from switchyard.drivers.detached_process import DetachedProcess, start_detached
from switchyard.drivers.hand_off import HandOff
from switchyard.layout import Workspace
from tests.waiting import eventually


@pytest.mark.parametrize(("command", "code"), [("exit 75", 75), ("kill -9 $$", 137), ("true", 0)])
def test_the_exit_code_of_a_detached_process_outlives_its_parent(workspace: Workspace, command: str, code: int) -> None:
    hand_off = HandOff.create(workspace, {})
    started = start_detached(hand_off.folder, ["/bin/sh", "-c", f"echo last words; {command}"], os.environ)
    process = DetachedProcess(hand_off.folder, started.pid)
    eventually(lambda: process.poll() is not None)
    assert (process.returncode, started.wait(), process.read_lines()[0]) == (code, code, "last words")


def test_a_polite_end_reaches_the_process_inside(workspace: Workspace) -> None:
    hand_off = HandOff.create(workspace, {})
    script = f"trap 'echo asked; exit 3' TERM; echo there; : {hand_off.folder}; while true; do sleep 0.05; done"
    started = start_detached(hand_off.folder, ["/bin/sh", "-c", script], os.environ)
    process = DetachedProcess(hand_off.folder, started.pid)
    assert eventually(process.read_lines) == ["there"]
    os.kill(started.pid, signal.SIGTERM)
    assert eventually(process.poll) == 3
    assert process.read_lines() == ["asked"]
    started.wait()


def test_a_log_that_maintenance_has_emptied_is_read_from_its_beginning(workspace: Workspace) -> None:
    hand_off = HandOff.create(workspace, {})
    output = hand_off.folder / "output.log"
    process = DetachedProcess(hand_off.folder, os.getpid())
    output.write_text("one\ntwo\nhal")
    assert process.read_lines() == ["one", "two"]
    output.write_text("new\n")
    assert process.read_lines() == ["new"]
    process.returncode = 0
    output.write_text("new\nend")
    assert process.read_lines() == ["end"]
