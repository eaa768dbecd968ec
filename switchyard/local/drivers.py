"""The drivers of this installation, found by their command line: also one without a pid file yet."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from switchyard.health import DriverProcess
from switchyard.layout import Workspace
from switchyard.local import processes, sessions


def find_drivers(workspace: Workspace) -> list[int]:
    """Every process of a driver: spark-submit's JVM and the Python process below it."""
    mark = str(workspace.secrets / "kafka-")
    return [pid for pid in sessions.list_pids() if mark in processes.read_command(pid) and not sessions.is_zombie(pid)]


def list_drivers(workspace: Workspace) -> list[DriverProcess]:
    """The drivers that run here, each once, named by the session that spark-submit has opened for it."""
    found = {}
    for pid in find_drivers(workspace):
        named = re.search(r"--generation (\d+)", processes.read_command(pid))
        session = sessions.session_of(pid)
        if named and session is not None:
            age = timedelta(seconds=processes.age_seconds(pid))
            found[session] = DriverProcess(session, int(named[1]), age)
    return list(found.values())


def end_driver(session: int) -> None:
    """Ends a driver that does not answer any more, with its JVM."""
    sessions.send(sessions.members([session]), signal.SIGKILL)


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
    for path in workspace.run.glob("driver-*.pid"):
        path.unlink(missing_ok=True)
    for path in workspace.secrets.glob("kafka-*.properties"):
        path.unlink(missing_ok=True)


def _known_pids(workspace: Workspace) -> set[int]:
    known = set()
    for path in workspace.run.glob("driver-*.pid"):
        with suppress(OSError, ValueError):
            known.add(int(path.read_text()))
    return known
