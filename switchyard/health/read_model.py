"""Hold what the API reads, for all its requests. Open tables at the first read: delta-rs does not survive a fork."""

from __future__ import annotations

import threading
from typing import Any

from switchyard.health.status_report import compose_status
from switchyard.settings import Settings
from switchyard.swap.history import Ledger
from switchyard.swap.history_store import entry_of, row_of
from switchyard.tables.changes import Changes
from switchyard.tables.live import LiveTables, Moment, Rows
from switchyard.tables.progress import RATE_WINDOW, Progress
from switchyard.tables.reader import Reader
from switchyard.tables.store import Row

RECENT_ROWS = 200
_PROGRESS = ["generation", "at", "inputRows", "batchMs", "startOffsets"]


class ReadModel:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.live = LiveTables(settings.layout)
        self.reader = Reader(self.live)
        self.changes = Changes(settings.layout, self.live)
        self._lock = threading.Lock()
        self._ledger: tuple[int, Ledger] = (-1, Ledger())

    def status(self) -> dict[str, Any]:
        return self.describe(self.live.moment())

    def describe(self, moment: Moment) -> dict[str, Any]:
        rate = self._rate(moment.progress) if moment.progress else 0.0
        return compose_status(self.settings, moment.status, moment.progress, rate, self.ledger())

    def swap(self, swap_id: str) -> dict[str, Any]:
        ledger = self.ledger()
        outcome = ledger.outcomes.get(swap_id)
        return {
            "swapId": swap_id,
            "events": [row_of(entry) for entry in ledger.entries if entry.swapId == swap_id],
            "outcome": str(outcome.event) if outcome else None,
            "detail": outcome.detail if outcome else "",
        }

    def ledger(self) -> Ledger:
        history = self.rows("swap_history")
        with self._lock:
            if self._ledger[0] != history.version:
                self._ledger = (history.version, Ledger.of(entry_of(row) for row in history.rows.to_pylist()))
            return self._ledger[1]

    def _rate(self, newest: Progress) -> float:
        """Return the rate of `newest_with_rate`, from the rows in memory."""
        since = newest.at - RATE_WINDOW
        mine = [row["inputRows"] for row in self.recent_progress(newest.generation) if row["at"] >= since]
        return round(float(sum(mine)) / RATE_WINDOW.total_seconds(), 1)

    def recent_progress(self, generation: int) -> list[Row]:
        """Return the last progress rows of a generation, oldest first."""
        recent = self.rows("progress").rows
        rows = recent.slice(max(0, recent.num_rows - RECENT_ROWS)).select(_PROGRESS).to_pylist()
        return [row for row in rows if row["generation"] == generation]

    def rows(self, name: str) -> Rows:
        found = self.live.read(name)
        if not isinstance(found, Rows):
            raise TypeError(f"{name} is not a small table")
        return found
