"""The drivers of this installation, found by their command line: also one without a pid file yet."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from switchyard.drivers import processes, sessions
from switchyard.drivers.hand_off import HandOff
from switchyard.layout import Workspace


@dataclass(frozen=True)
class DriverProcess:
    session: int
    """Its process and its JVM are in a session of their own."""
    generation: int
    age: timedelta


@dataclass(frozen=True)
class SpareProcess:
    """A driver that no generation has taken yet."""

    session: int
    name: str
    age: timedelta
    is_ready: bool
    silence: timedelta
    """Since it has last shown that it waits"""


def find_drivers(workspace: Workspace) -> list[int]:
    """Every process of a driver or a spare: spark-submit's JVM, the Python process below it, the shell around it."""
    marks = (str(workspace.secrets / "kafka-"), f"--spare {workspace.spares}/")
    return [
        pid
        for pid in sessions.list_pids()
        if any(mark in processes.read_command(pid) for mark in marks) and not sessions.is_zombie(pid)
    ]


def list_drivers(workspace: Workspace) -> list[DriverProcess]:
    """The drivers that run here, each once, named by the session that spark-submit has opened for it."""
    found = {}
    for pid in find_drivers(workspace):
        session = sessions.session_of(pid)
        work = _find_work(workspace, pid)
        if work and session is not None:
            found[session] = DriverProcess(session, *work)
    return list(found.values())


def _find_work(workspace: Workspace, pid: int) -> tuple[int, timedelta] | None:
    """The generation of a driver, and since when it works for it. A spare is as old as its order."""
    command = processes.read_command(pid)
    hand_off = find_hand_off(workspace, command)
    if hand_off is not None:
        order, seconds = hand_off.read_order(), hand_off.accepted_seconds
        return (order.request.generation, timedelta(seconds=seconds)) if order and seconds is not None else None
    named = re.search(r"--generation (\d+)", command)
    return (int(named[1]), timedelta(seconds=processes.age_seconds(pid))) if named else None


def find_hand_off(workspace: Workspace, command: str) -> HandOff | None:
    """The folder that a spare was started with, also when it is a generation's driver since."""
    named = re.search(rf"--spare {re.escape(str(workspace.spares))}/([\w-]+)", command)
    return HandOff(workspace.spares / named[1]) if named else None


def list_spares(workspace: Workspace) -> list[SpareProcess]:
    """The drivers that no generation has taken yet, each once."""
    found = {}
    for pid in find_drivers(workspace):
        session = sessions.session_of(pid)
        hand_off = find_hand_off(workspace, processes.read_command(pid))
        if hand_off is not None and session is not None and hand_off.accepted_seconds is None:
            age = timedelta(seconds=processes.age_seconds(pid))
            silence = timedelta(seconds=hand_off.silence_seconds)
            is_ready = hand_off.read_offer() is not None
            found[session] = SpareProcess(session, hand_off.folder.name, age, is_ready, silence)
    return list(found.values())


def end_driver(session: int) -> None:
    """Ends a driver that does not answer any more, with its JVM."""
    sessions.send(sessions.members([session]), signal.SIGKILL)


def end_spare(workspace: Workspace, spare: SpareProcess) -> bool:
    """Ends a spare, unless somebody takes it at this moment."""
    hand_off = HandOff(workspace.spares / spare.name)
    if spare.is_ready and not hand_off.claim():
        return False
    end_driver(spare.session)
    return True


def choose_targets(found: list[int], known: set[int], session_of: Callable[[int], int | None]) -> set[int]:
    """Whom to ask: the Python process that wrote its pid; before it has, the leader of its session.

    The JVM is not asked when there is a Python process: it would end in the middle of a batch.
    """
    ready = {pid for pid in found if pid in known}
    covered = {session_of(pid) for pid in ready}
    return ready | {pid for pid in found if session_of(pid) == pid and pid not in covered}


def stop_drivers(workspace: Workspace, deadline_seconds: float) -> None:
    """Drivers finish their batch and end; what has not ended by the deadline is ended."""
    found = find_drivers(workspace)
    sessions.send(choose_targets(found, _known_pids(workspace), sessions.session_of), signal.SIGTERM)
    if not sessions.wait_until(lambda: not find_drivers(workspace), deadline_seconds):
        sessions.send(find_drivers(workspace), signal.SIGKILL)
        sessions.wait_until(lambda: not find_drivers(workspace), 5)
    for path in _pid_files(workspace):
        path.unlink(missing_ok=True)
    for path in workspace.secrets.glob("kafka-*.properties"):
        path.unlink(missing_ok=True)


def _pid_files(workspace: Workspace) -> list[Path]:
    return [*workspace.run.glob("driver-*.pid"), *workspace.spares.glob("*/spare.pid")]


def _known_pids(workspace: Workspace) -> set[int]:
    known = set()
    for path in _pid_files(workspace):
        with suppress(OSError, ValueError):
            known.add(int(path.read_text()))
    return known
