"""Limit time by a clock that only goes forward: a jump of the wall clock neither ends nor extends a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator


class Deadline:
    def __init__(self, seconds: float) -> None:
        self.restart(seconds)

    def restart(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self._at

    def restart_if_passed(self, seconds: float) -> bool:
        """Return whether a repeated action is due; if so, it is due again in so many seconds."""
        if is_due := self.has_passed:
            self.restart(seconds)
        return is_due

    def polls(self, pause_seconds: float) -> Iterator[None]:
        """Yield at once and after each pause, the last time when the deadline has passed."""
        while True:
            is_last = self.has_passed
            yield
            if is_last:
                return
            time.sleep(pause_seconds)
