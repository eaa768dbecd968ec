"""End a driver that hangs, from the task that it runs in: the task then starts the next attempt.

A driver touches its pid file each time its main loop has come round. Only changes of the file's time count, never the
wall clock, so that a clock jump ends no driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PULSE_POLL_SECONDS = 2.0


class Pulse:
    """The sign of life of a process that writes its pid into a file and touches that file now and then."""

    def __init__(self, path: Path, starting_seconds: float, hung_seconds: float, pid: int | None = None) -> None:
        self._path = path
        self._pid = pid
        self._starting_seconds = starting_seconds
        self._hung_seconds = hung_seconds
        self._earlier = self._read()
        self._last = self._earlier
        self._touches = 0
        self._changed_at: float | None = None

    def find_silence(self, now: float) -> float | None:
        """Return the seconds of a silence that is too long, by the monotonic clock; None while the process is alive."""
        seen = self._read()
        if self._changed_at is None:
            self._changed_at = now
        if seen is not None and seen != self._last and self._is_watched(seen[0]):
            is_same = self._last is not None and seen[0] == self._last[0]
            self._touches = self._touches + 1 if is_same else 0
            self._last, self._changed_at = seen, now
        # A process writes its pid long before it has started to work.
        allowed = self._hung_seconds if self._touches else self._starting_seconds
        silence = now - self._changed_at
        return silence if silence > allowed else None

    def _is_watched(self, pid: str) -> bool:
        if self._pid is not None:
            return pid == str(self._pid)
        # What was in the file at the beginning is from an earlier process.
        return self._earlier is None or pid != self._earlier[0]

    def _read(self) -> tuple[str, int] | None:
        try:
            return self._path.read_text(), self._path.stat().st_mtime_ns
        except OSError:
            return None


@contextmanager
def watching(pulse: Pulse, end: Callable[[float], None]) -> Iterator[None]:
    """Call `end` once, with the seconds of silence, when the pulse is lost while the block lasts."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(PULSE_POLL_SECONDS):
            silence = pulse.find_silence(time.monotonic())
            if silence is not None:
                end(silence)
                return

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
