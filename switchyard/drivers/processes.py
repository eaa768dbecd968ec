"""Start processes, find those of this machine by command line or session, and end them.

A `psutil.Process` knows when it was started, so a signal never reaches another process that got its pid since.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from psutil import Process

from switchyard.deadline import Deadline

POLL_SECONDS = 0.1


def launch(
    command: list[str], cwd: Path | None, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process with its output in a log, in a separate session: Ctrl-C in a terminal must not reach it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def list_commands() -> list[tuple[Process, str]]:
    """List every process with its command line, which is empty while it starts and after its end."""
    return [(found, " ".join(found.info["cmdline"] or ())) for found in psutil.process_iter(["cmdline"])]


def read_command(pid: int) -> str:
    """Return the command line of a process; empty if it does not exist, or has ended and was not reaped."""
    with suppress(psutil.Error):
        return " ".join(Process(pid).cmdline())
    return ""


def is_alive(process: Process) -> bool:
    """Return whether a process may still hold its ports and files; a zombie without other threads does not."""
    with suppress(psutil.Error):
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return process.is_running() and (not is_zombie or process.num_threads() > 1)
    return False


def find_process(pid: int) -> Process | None:
    with suppress(psutil.Error):
        found = Process(pid)
        return found if is_alive(found) else None
    return None


def find_members(sessions: Iterable[int]) -> list[Process]:
    """Return the living processes of these sessions: all that a process has started is in its session."""
    # Sessions 0 and 1 are the system's, and hold every process that was not given a separate session.
    wanted = {session for session in sessions if session > 1}
    found = (find_process(pid) for pid in psutil.pids() if session_of(pid) in wanted)
    return [process for process in found if process]


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def age_seconds(process: Process) -> float:
    return max(0.0, time.time() - process.create_time())


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def wait_until(predicate: Callable[[], bool], deadline_seconds: float) -> bool:
    return any(predicate() for _ in Deadline(deadline_seconds).polls(POLL_SECONDS))


def end(
    find: Callable[[], list[Process]],
    deadline_seconds: float,
    ask: Iterable[Process] | None = None,
    ask_with: signal.Signals = signal.SIGTERM,
) -> None:
    """Ask what is found, or only `ask`, to end; kill what is left after the deadline."""
    send(find() if ask is None else ask, ask_with)
    if not wait_until(lambda: not find(), deadline_seconds):
        send(find(), signal.SIGKILL)
        wait_until(lambda: not find(), 5)


def end_sessions(sessions: Iterable[int], deadline_seconds: float) -> None:
    wanted = set(sessions)
    end(lambda: find_members(wanted), deadline_seconds)


def boot_id() -> str:
    """Name this boot of the machine: after the next one, process ids in files mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
