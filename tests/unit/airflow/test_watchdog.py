"""When the task of a driver takes it for hung."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from switchyard.airflow import watchdog
from switchyard.airflow.watchdog import Pulse, watching

STARTING, HUNG = 100.0, 30.0


class Process:
    """A process that writes a pid and touches it."""

    def __init__(self, path: Path, pid: str) -> None:
        self.path, self.pid = path, pid
        self.stamp = 0

    def announce(self) -> None:
        self.path.write_text(self.pid)
        self.touch()

    def touch(self, step: int = 1) -> None:
        self.stamp += step
        os.utime(self.path, ns=(self.stamp * 10**9, self.stamp * 10**9))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "driver-1.pid"


def test_a_start_may_take_longer_than_a_silence(path: Path) -> None:
    pulse, process = Pulse(path, STARTING, HUNG), Process(path, "7")
    assert pulse.find_silence(0) is None
    assert pulse.find_silence(90) is None
    process.announce()
    assert pulse.find_silence(95) is None
    assert pulse.find_silence(190) is None
    process.touch()
    assert pulse.find_silence(191) is None
    assert pulse.find_silence(220) is None
    assert pulse.find_silence(222) == 31


def test_a_process_that_never_comes_is_taken_for_hung(path: Path) -> None:
    pulse = Pulse(path, STARTING, HUNG)
    assert pulse.find_silence(0) is None
    assert pulse.find_silence(101) == 101


def test_what_an_earlier_attempt_left_or_still_does_is_not_this_one(path: Path) -> None:
    earlier = Process(path, "6")
    earlier.announce()
    pulse = Pulse(path, STARTING, HUNG)
    assert pulse.find_silence(0) is None
    earlier.touch()
    assert pulse.find_silence(101) == 101
    Process(path, "7").announce()
    assert pulse.find_silence(102) is None
    assert pulse.find_silence(200) is None


def test_one_whose_pid_is_known_may_have_been_there_before(path: Path) -> None:
    process = Process(path, "7")
    process.announce()
    pulse = Pulse(path, STARTING, HUNG, pid=7)
    assert pulse.find_silence(0) is None
    process.touch()
    for now in (30.0, 60.0):
        process.touch()
        assert pulse.find_silence(now) is None
    Process(path, "6").announce()
    assert pulse.find_silence(90) is None
    assert pulse.find_silence(91) == 31


def test_a_wall_clock_that_jumps_is_a_touch_like_any_other(path: Path) -> None:
    pulse, process = Pulse(path, STARTING, HUNG), Process(path, "7")
    process.announce()
    pulse.find_silence(0)
    for step, now in ((100_000, 1.0), (-99_990, 2.0), (1, 3.0)):
        process.touch(step)
        assert pulse.find_silence(now) is None
    assert pulse.find_silence(32) is None
    assert pulse.find_silence(34) == 31


def test_a_process_that_lost_its_pulse_is_ended_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PULSE_POLL_SECONDS", 0.01)
    ended, told = threading.Event(), []

    def end(silence: float) -> None:
        told.append(silence)
        ended.set()

    with watching(Pulse(path, 0.05, 0.05), end):
        assert ended.wait(5)
    assert len(told) == 1
    with watching(Pulse(path, 60, 60), end):
        pass
    assert len(told) == 1
