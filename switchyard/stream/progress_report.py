"""What a driver reports in `progress`: its position after each batch, and between batches that it lives."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from switchyard import offsets
from switchyard.layout import Layout
from switchyard.offsets import Offsets
from switchyard.spec import GenerationSpec
from switchyard.swap.fan_out import FanOut
from switchyard.tables import store
from switchyard.tables.progress import Progress, newest_progress, report
from switchyard.tables.sink import Counts


@dataclass(frozen=True)
class BatchPosition:
    """Where a generation is after a batch: the end of the batch and the Delta versions that belong to it."""

    batch_id: int
    end: Offsets
    versions: dict[str, int]


def position_of(last: Progress | None) -> BatchPosition | None:
    """Return where an earlier attempt ended, without a batch that it left half done."""
    if last is None or last.endOffsets is None:
        return None
    return BatchPosition(last.batchId, offsets.from_json(last.endOffsets), last.versions())


class ProgressReport:
    """Written by batches from Spark's threads, and by the main thread, which also sets what it observes."""

    def __init__(self, layout: Layout, spec: GenerationSpec, attempt: int, versions: dict[str, int]) -> None:
        last = newest_progress(layout, spec.generation)
        self._layout = layout
        self._spec = spec
        self._attempt = attempt
        self.table = store.open_table(layout, "progress")
        self._first_versions = versions
        self.position = position_of(last)
        self._fan_out = FanOut()
        if last is not None and self.position is not None:
            self._fan_out = FanOut(offsets.count_records(spec.startOffsets, self.position.end), last.rowsPerEvent)
        # A heartbeat must not come after a batch's row and tell the position before it.
        self._lock = threading.Lock()
        self.reported_at = 0.0
        self.broker_ends: Offsets = {}
        """Empty while the broker does not answer"""
        self.moved_at = time.monotonic()
        """When the work last moved, by a clock that only goes forward"""
        self.executors: int | None = None

    @property
    def lag(self) -> int | None:
        """How many records wait; None while the broker does not answer."""
        if not self.broker_ends:
            return None
        end = self.position.end if self.position else self._spec.startOffsets
        return max(0, offsets.count_records(end, self.broker_ends))

    def report_batch(self, position: BatchPosition, start: Offsets, counts: Counts, seconds: float) -> None:
        with self._lock:
            self.position = position
            self._fan_out.add(offsets.count_records(start, position.end), counts.pairs)
            self.moved_at = time.monotonic()
            self._write(counts, seconds, offsets.to_json(start))

    def report_alive(self) -> None:
        """Write a heartbeat, also in the middle of a batch: the last position once more."""
        with self._lock:
            self._write(Counts(0, 0, 0), 0.0, None)

    def change_versions(self, versions: dict[str, int]) -> None:
        """Let the next heartbeat name other versions at the same position: rows were forgotten between two batches."""
        with self._lock:
            self._first_versions = versions
            if self.position:
                self.position = replace(self.position, versions=versions)

    def _write(self, counts: Counts, seconds: float, start: str | None) -> None:
        position, now = self.position or BatchPosition(-1, {}, self._first_versions), datetime.now(UTC)
        versions: dict[str, Any] = {f"{name}Version": version for name, version in position.versions.items()}
        report(
            self._layout,
            Progress(
                generation=self._spec.generation,
                attempt=self._attempt,
                batchId=position.batch_id,
                at=now,
                inputRows=counts.input_rows,
                rowsPerSecond=counts.input_rows / seconds if seconds else 0.0,
                batchMs=int(seconds * 1000),
                lag=self.lag,
                rejectedRows=counts.rejected_rows,
                tombstones=counts.tombstones,
                startOffsets=start,
                endOffsets=offsets.to_json(position.end) if position.end else None,
                rowsPerEvent=self._fan_out.average,
                recentRowsPerEvent=self._fan_out.recent,
                movedAt=now - timedelta(seconds=time.monotonic() - self.moved_at),
                executors=self.executors,
                **versions,
            ),
            self.table,
        )
        self.reported_at = time.monotonic()
