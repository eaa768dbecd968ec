"""Notices that the wall clock was put forward or back: times from before say nothing about silence then."""

from __future__ import annotations

from datetime import datetime, timedelta

MOST_DRIFT = timedelta(seconds=2)


class JumpWatch:
    """Compares the wall clock with one that only goes forward."""

    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None

    def find_jump(self, wall: datetime, monotonic: float) -> timedelta | None:
        """How far the clock has jumped since the last look; None when it has not."""
        last, self._last = self._last, (wall, monotonic)
        if last is None:
            return None
        jump = wall - last[0] - timedelta(seconds=monotonic - last[1])
        return jump if abs(jump) > MOST_DRIFT else None
