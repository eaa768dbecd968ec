"""How other processes find a job and ask it to stop: the file with its process id, and SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from switchyard.settings import Settings


def touch_pid_file(settings: Settings, generation: int) -> None:
    """Show the task `stream` that this process lives, unless a newer attempt has written its own id into the file."""
    path = settings.workspace.driver_pid(generation)
    with contextlib.suppress(OSError):
        if path.read_text() == str(os.getpid()):
            os.utime(path)


@contextlib.contextmanager
def catching_stop(stop: Callable[[], None], *others: signal.Signals) -> Iterator[None]:
    """Call `stop` on SIGTERM, SIGINT and other signals, as long as the block runs."""
    numbers = (signal.SIGTERM, signal.SIGINT, *others)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stoppable(settings: Settings, generation: int, stop: Callable[[], None]) -> Iterator[None]:
    """Keep the process id on disk, and call `stop` on SIGTERM and SIGINT, as long as the block runs."""
    path = settings.workspace.driver_pid(generation)
    with catching_stop(stop):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(os.getpid()))
        try:
            yield
        finally:
            # A newer attempt may have written its own id here.
            if path.exists() and path.read_text() == str(os.getpid()):
                path.unlink()
