"""Detect jumps of the wall clock. After one, times from before must not be read as silence."""

from __future__ import annotations

from datetime import datetime, timedelta

MOST_DRIFT = timedelta(seconds=2)


class ClockJumps:
    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None

    def find_jump(self, wall: datetime, monotonic: float) -> timedelta | None:
        """Return how far the wall clock has jumped since the last call; None when it has not."""
        last, self._last = self._last, (wall, monotonic)
        if last is None:
            return None
        jump = wall - last[0] - timedelta(seconds=monotonic - last[1])
        return jump if abs(jump) > MOST_DRIFT else None
