"""Process sessions: whatever a component has started, however deep, is found and ended by its session."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.1


def list_pids() -> list[int]:
    proc = Path("/proc")
    if (proc / "self").exists():
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    answer = subprocess.run(["ps", "-axo", "pid="], capture_output=True, text=True)
    return [int(word) for word in answer.stdout.split()]


def members(sessions: Iterable[int]) -> list[int]:
    """Living processes of these sessions. One that has ended and only waits to be reaped does not count.

    Sessions 0 and 1 are the system's: whoever was not given a session of its own is in one of them.
    """
    wanted = {session for session in sessions if session > 1}
    return [pid for pid in list_pids() if session_of(pid) in wanted and not is_zombie(pid)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not is_zombie(pid)


def is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def wait_until(predicate: Callable[[], bool], deadline_seconds: float) -> bool:
    deadline = time.monotonic() + deadline_seconds
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def end_sessions(sessions: Iterable[int], deadline_seconds: float) -> None:
    """Whatever is left of these sessions ends: asked first, then without asking."""
    wanted = set(sessions)
    send(members(wanted), signal.SIGTERM)
    if not wait_until(lambda: not members(wanted), deadline_seconds):
        send(members(wanted), signal.SIGKILL)
        wait_until(lambda: not members(wanted), 5)


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
