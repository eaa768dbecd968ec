"""What the checks see, built from what a test is about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from switchyard.health.checks import HealthInputs, Heartbeat
from switchyard.policies import Limits
from switchyard.swap.history import Entry, Event, Ledger, StatusRow
from tests.specs import TARGET

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
LIMITS = Limits(
    stale=timedelta(seconds=15),
    hung=timedelta(seconds=45),
    stuck=timedelta(seconds=120),
    starting=timedelta(seconds=120),
    lost=timedelta(seconds=300),
    least_free_bytes=2**30,
    reject_share=0.5,
)
ACTIVE = StatusRow(generation=1, target=TARGET, lastApplied=NOW - timedelta(hours=1), epoch=1, flipped=1)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def entry(swap_id: str, event: Event, generation: int, seconds: float, deadline: datetime | None = None) -> Entry:
    return Entry(swap_id, event, generation, TARGET, "latest", "test", at=ago(seconds), deadline=deadline)


FIRST = [entry("first", Event.REQUESTED, 1, 3700), entry("first", Event.APPLIED, 1, 3600)]


def heartbeat(seconds: float, *, lag: int | None = 0, is_batch: bool = True, **fields: float) -> Heartbeat:
    shape = {"attempt": 1, "batch_id": 7, "input_rows": 100, "rejected_rows": 0, "batch_seconds": 1.0}
    return Heartbeat(at=ago(seconds), lag=lag, is_batch=is_batch, **{**shape, **fields})  # type: ignore[arg-type]


def inputs(*heartbeats: Heartbeat, entries: list[Entry] | None = None, status_row: StatusRow = ACTIVE) -> HealthInputs:
    return HealthInputs(NOW, Ledger.of(FIRST if entries is None else entries), status_row, heartbeats=heartbeats)
