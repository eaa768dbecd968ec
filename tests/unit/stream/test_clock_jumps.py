"""A clock that jumps: how far is seen by the other clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from switchyard.stream.clock_jumps import ClockJumps

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("seconds", "jump"), [(1.0, None), (3601.0, 3600.0), (-3599.0, -3600.0)])
def test_a_jump_is_what_the_other_clock_did_not_see(seconds: float, jump: float | None) -> None:
    watch = ClockJumps()
    assert watch.find_jump(NOW, 100.0) is None
    found = watch.find_jump(NOW + timedelta(seconds=seconds), 101.0)
    assert found == (None if jump is None else timedelta(seconds=jump))
    assert watch.find_jump(NOW + timedelta(seconds=seconds + 1), 102.0) is None
