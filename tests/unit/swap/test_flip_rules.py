"""When a flip may follow the last one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from switchyard.policies import Rules
from switchyard.swap.flip_rules import is_dwelling
from switchyard.swap.history import Entry, Event, Ledger

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_flip_from_the_future_does_not_keep_the_next_one_waiting() -> None:
    rules = Rules(dwell=timedelta(seconds=5))
    ledger = Ledger((Entry("a", Event.APPLIED, 1, at=NOW + timedelta(hours=1)),))
    assert not is_dwelling(ledger, NOW, rules)
    assert is_dwelling(ledger, NOW + timedelta(hours=1, seconds=4), rules)
    assert is_dwelling(ledger, NOW + timedelta(hours=1, seconds=-4), rules)
