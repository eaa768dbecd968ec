"""The status row: which generation everybody reads. It changes only by compare-and-set on its epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from deltalake import DeltaTable

from switchyard.layout import Layout
from switchyard.tables import store

ACTIVE = "ACTIVE"


@dataclass(frozen=True)
class Status:
    generation: int
    usersTopic: str
    accountsTopic: str
    joinType: str
    lastApplied: datetime
    state: str
    epoch: int


def read_status(layout: Layout) -> Status | None:
    rows = store.read_rows(layout, "status")
    return Status(**rows[0]) if rows else None


def flip(layout: Layout, expected_epoch: int, wanted: Status) -> Status | None:
    """Makes `wanted` the status if the epoch is still the expected one (0: no row yet); None when it is not."""
    after = replace(wanted, epoch=expected_epoch + 1, lastApplied=datetime.now(UTC))

    def decide(table: DeltaTable) -> store.Change | None:
        rows = store.read_snapshot(table, "status").to_pylist()
        epoch = rows[0]["epoch"] if rows else 0
        if epoch != expected_epoch:
            return None
        return store.Change(rows=[asdict(after)], mode="overwrite")

    return None if store.transact(layout, "status", decide) is None else after
