"""Commit a micro-batch to users, accounts, rejects and joined, with one commit each.

The driver writes the files of a small batch from Arrow; of a big one the executors write them (`stream/bulk.py`). All
commits go through the fenced writer, so a replayed batch or a replaced attempt changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from switchyard.layout import BIG_TABLES, Layout
from switchyard.records import SIDES
from switchyard.spec import GenerationSpec
from switchyard.tables import forgetting, joined_changes
from switchyard.tables.forgotten import MarkReader, Marks
from switchyard.tables.joined_writer import commit_joined
from switchyard.tables.writer import Revision, TableWriter


@dataclass(frozen=True)
class Counts:
    input_rows: int
    rejected_rows: int
    tombstones: int
    pairs: int = 0


class BatchSink:
    """Writes the big tables for one attempt of one generation."""

    def __init__(self, layout: Layout, spec: GenerationSpec, attempt: int) -> None:
        self.spec = spec
        self.writers = {name: TableWriter(layout, name, spec.generation, attempt) for name in BIG_TABLES}
        self._mark_reader = MarkReader(layout)

    def check_fence(self) -> None:
        for writer in self.writers.values():
            writer.refresh()

    def versions(self) -> dict[str, int]:
        return {name: writer.version for name, writer in self.writers.items()}

    def count_touched_files(self) -> int:
        """Return about how many files were read or written so far: it grows while the driver works."""
        return sum(writer.touched_files for writer in self.writers.values())

    def has_begun(self, batch_id: int) -> bool:
        """Return whether a table has the batch already, as of the last refresh."""
        return any(writer.last_batch() >= batch_id for writer in self.writers.values())

    def marks(self) -> Marks:
        """Return the marks that this generation has carried out."""
        # Not the newest ones: a batch and its replay must apply the same marks.
        return self._mark_reader.marks().up_to(min(writer.last_mark() for writer in self.writers.values()))

    def has_new_marks(self) -> bool:
        return min(writer.last_mark() for writer in self.writers.values()) < self._mark_reader.marks().newest

    def carry_out_marks(self) -> dict[str, int] | None:
        """Carry out new marks, between two batches; return the rows that each table lost, None without new marks."""
        self.check_fence()
        marks, reached = self._mark_reader.marks(), [writer.last_mark() for writer in self.writers.values()]
        # First finish what another attempt has begun, so that the same marks apply to a batch in all tables.
        targets = {max(reached), marks.newest} if min(reached) < marks.newest else set()
        lost = [
            forgetting.carry_out(self.writers, self.spec, marks.up_to(target))
            for target in sorted(targets)
            if target > min(reached)
        ]
        return {name: sum(part[name] for part in lost) for name in BIG_TABLES} if lost else None

    def commit_arrow(self, batch_id: int, rows: pa.Table) -> Counts:
        """Commit a batch that fits the driver."""
        batch = joined_changes.split_batch(forgetting.skip_forgotten(rows, self.marks(), self.spec))
        sources = {side.plural: joined_changes.event_rows(batch, side, self.spec.topic_of(side)) for side in SIDES} | {
            "rejects": joined_changes.reject_rows(batch, self.spec)
        }
        for name, source in sources.items():
            self.commit_appended(name, batch_id, source)
        commit_joined(self.writers["joined"], batch_id, joined_changes.joined_changes(batch, self.spec.joinType))
        forgotten = pc.sum(pc.equal(batch.rejects["reason"], forgetting.REASON)).as_py() or 0
        return Counts(batch.input_rows, batch.rejects.num_rows - forgotten, batch.tombstones, batch.pairs.num_rows)

    def commit_appended(self, name: str, batch_id: int, rows: pa.Table) -> None:
        writer = self.writers[name]
        writer.commit(batch_id, lambda _: Revision([writer.write(rows)] if rows.num_rows else []))

    def commit_files(self, name: str, batch_id: int, added: list[AddAction]) -> None:
        self.writers[name].commit(batch_id, lambda _: Revision(added))
