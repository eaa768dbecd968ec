"""Read the status row: which generation everybody reads. Only `swap/history_store.py` changes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

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
