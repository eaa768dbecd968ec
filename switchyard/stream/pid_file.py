"""Where a job says that it is there, and how it is asked to end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from switchyard.settings import Settings


@contextlib.contextmanager
def announced(settings: Settings, generation: int, end: Callable[[], None]) -> Iterator[None]:
    """While it lasts, the process id is on disk and SIGTERM asks for an orderly end."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        end()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    path: Path = settings.workspace.driver_pid(generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(os.getpid()))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if path.exists() and path.read_text() == str(os.getpid()):
            path.unlink()
