"""Find the processes of drivers and spares by their command lines: a driver that starts has no pid file yet."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from psutil import Process

from switchyard.drivers import processes
from switchyard.drivers.hand_off import HandOff
from switchyard.layout import Workspace


@dataclass(frozen=True)
class DriverProcess:
    session: int
    """Holds its Python process and its JVM, and nothing else."""
    generation: int
    age: timedelta


@dataclass(frozen=True)
class SpareProcess:
    """A spare that no generation has taken yet."""

    session: int
    name: str
    age: timedelta
    is_ready: bool
    silence: timedelta
    """Since it last touched its pid file."""


def find_drivers(workspace: Workspace) -> list[tuple[Process, str]]:
    """Find the processes of drivers and spares: spark-submit's JVM, the Python process below, the shell around."""
    parts = (str(workspace.secrets / "kafka-"), f"--spare {workspace.spares}/")
    return [found for found in processes.list_commands() if any(part in found[1] for part in parts)]


def list_drivers(workspace: Workspace) -> list[DriverProcess]:
    """List the drivers that run here, one entry for each session."""
    found = {}
    for process, command in find_drivers(workspace):
        session = processes.session_of(process.pid)
        work = _find_work(workspace, process, command)
        if work and session is not None:
            found[session] = DriverProcess(session, *work)
    return list(found.values())


def _find_work(workspace: Workspace, process: Process, command: str) -> tuple[int, timedelta] | None:
    """Return the generation of a driver, and since when it works for it: a former spare since its order."""
    hand_off = find_hand_off(workspace, command)
    if hand_off is not None:
        order, seconds = hand_off.read_order(), hand_off.accepted_seconds
        return (order.generation, timedelta(seconds=seconds)) if order and seconds is not None else None
    named = re.search(r"--generation (\d+)", command)
    return (int(named[1]), timedelta(seconds=processes.age_seconds(process))) if named else None


def find_hand_off(workspace: Workspace, command: str) -> HandOff | None:
    """Return the folder that a spare was started with, also after a generation has taken it."""
    named = re.search(rf"--spare {re.escape(str(workspace.spares))}/([\w-]+)", command)
    return HandOff(workspace.spares / named[1]) if named else None


def list_spares(workspace: Workspace) -> list[SpareProcess]:
    """List the spares, one entry for each session."""
    found = {}
    for process, command in find_drivers(workspace):
        session = processes.session_of(process.pid)
        hand_off = find_hand_off(workspace, command)
        if hand_off is not None and session is not None and hand_off.accepted_seconds is None:
            age = timedelta(seconds=processes.age_seconds(process))
            silence = timedelta(seconds=hand_off.silence_seconds)
            is_ready = hand_off.read_offer() is not None
            found[session] = SpareProcess(session, hand_off.folder.name, age, is_ready, silence)
    return list(found.values())


def end_driver(session: int) -> None:
    """Kill a driver that does not answer, with its JVM."""
    processes.send(processes.find_members([session]), signal.SIGKILL)


def end_spare(workspace: Workspace, spare: SpareProcess) -> bool:
    """Kill a spare, unless a task takes it at this moment."""
    hand_off = HandOff(workspace.spares / spare.name)
    if spare.is_ready and not hand_off.claim():
        return False
    end_driver(spare.session)
    return True


def choose_targets(found: list[int], known: set[int], session_of: Callable[[int], int | None]) -> set[int]:
    """Choose which processes get SIGTERM: the Python process that wrote its pid, or else the leader of its session."""
    # Not the JVM of a Python process: it would end in the middle of a batch.
    ready = {pid for pid in found if pid in known}
    covered = {session_of(pid) for pid in ready}
    return ready | {pid for pid in found if session_of(pid) == pid and pid not in covered}


def stop_drivers(workspace: Workspace, deadline_seconds: float) -> None:
    """Ask all drivers to end after their batch; kill what has not ended by the deadline."""

    def find() -> list[Process]:
        return [process for process, _ in find_drivers(workspace)]

    found = find()
    asked = choose_targets([process.pid for process in found], _known_pids(workspace), processes.session_of)
    processes.end(find, deadline_seconds, ask=[process for process in found if process.pid in asked])
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
