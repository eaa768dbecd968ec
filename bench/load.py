"""A driver under load: what it has read of its topics, and what it holds in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.drivers import GENERATION, Driver, is_active, resident_bytes
from switchyard import offsets
from switchyard.kafka.topics import TopicReader
from switchyard.layout import BIG_TABLES
from switchyard.offsets import Offsets, has_reached
from switchyard.settings import Settings
from switchyard.tables import store
from switchyard.tables.progress import batches, newest_progress

MOST_SECONDS = 900


@dataclass
class Load:
    settings: Settings
    join_type: str
    driver: Driver
    reader: TopicReader
    topics: tuple[str, str]
    most_mib: float = field(default=0.0, kw_only=True)

    def joined_rows(self) -> int:
        table = store.open_table(self.settings.layout, "joined")
        return int(pc.sum(pa.table(table.get_add_actions())["num_records"]).as_py())

    def memory_mib(self) -> float:
        python = int(self.settings.workspace.driver_pid(GENERATION).read_text())
        now = sum(map(resident_bytes, (self.driver.process.pid, python))) / 2**20
        self.most_mib = max(self.most_mib, now)
        return now

    def stored_mb(self) -> dict[str, float]:
        """Return the megabytes of the live files of the big tables, and of the checkpoint with its state."""
        layout = self.settings.layout
        live = [pc.sum(pa.table(store.open_table(layout, name).get_add_actions())["size_bytes"]) for name in BIG_TABLES]
        kept = [path.stat().st_size for path in Path(layout.checkpoint(GENERATION)).rglob("*") if path.is_file()]
        return {"tables": sum(size.as_py() or 0 for size in live) / 1e6, "checkpoint": sum(kept) / 1e6}

    def last_batch(self) -> int:
        progress = newest_progress(self.settings.layout, GENERATION)
        return progress.batchId if progress else -1

    def batch_seconds_since(self, last: int, events: int) -> list[float]:
        """Return the time of each batch after the last one that has read exactly so many events."""
        done = batches(self.settings.layout, GENERATION)
        return [row.batchMs / 1000 for row in done if row.batchId > last and row.inputRows == events]

    def ends(self) -> Offsets:
        return {topic: self.reader.bounds(topic)[1] for topic in self.topics}

    def wait_until_read(self, every: float = 0.2) -> None:
        ends = self.ends()

        def is_read() -> bool:
            if self.settings.workspace.driver_pid(GENERATION).exists():
                self.memory_mib()
            progress = newest_progress(self.settings.layout, GENERATION)
            return bool(progress and progress.endOffsets and has_reached(offsets.from_json(progress.endOffsets), ends))

        self.driver.wait_for(is_read, "all events are read", MOST_SECONDS, every)

    def wait_until_active(self) -> None:
        self.driver.wait_for(lambda: is_active(self.settings), "the flip", MOST_SECONDS)
