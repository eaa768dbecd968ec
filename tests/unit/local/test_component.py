"""How long a component that has ended waits for its next start."""

from __future__ import annotations

from switchyard.local.component import pause_seconds


def test_restarts_slow_down() -> None:
    assert [pause_seconds(failures) for failures in (1, 2, 3, 10)] == [1, 2, 4, 30]
