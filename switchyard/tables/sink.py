"""Commits a micro-batch: users, accounts, rejects and joined, one commit each, then the progress row that ties them.

Small batches are written here from Arrow; of a big one the executors write the files (see `bulk`). All commits go
through the fenced writer, so a replayed batch or a replaced attempt changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from switchyard.layout import BIG_TABLES, Layout
from switchyard.spec import GenerationSpec
from switchyard.tables import files, forgetting, joined_changes
from switchyard.tables.forgotten import Marks, Register
from switchyard.tables.joined_changes import JoinedChanges
from switchyard.tables.merging import level_of
from switchyard.tables.pieces import FILE_BYTES, gather
from switchyard.tables.writer import FILE_ROWS, Revision, TableWriter

REVISING_THREADS = 2
HELD_BYTES = 2**20
"""What is held of a small file until the rows of all are written; a long text that repeats takes little on disk."""


@dataclass(frozen=True)
class Counts:
    input_rows: int
    rejected_rows: int
    tombstones: int
    pairs: int = 0


@dataclass(frozen=True)
class RewrittenFile:
    """The files in the place of one file of `joined`, and its rows that go into a file with those of others.

    All that is left of a small file does, so that the next batch has fewer to write again.
    """

    added: list[AddAction]
    replacing: list[pa.Table]


class BatchSink:
    """The big tables in the hands of one attempt of one generation."""

    def __init__(self, layout: Layout, spec: GenerationSpec, attempt: int) -> None:
        self.spec = spec
        self.writers = {name: TableWriter(layout, name, spec.generation, attempt) for name in BIG_TABLES}
        self._register = Register(layout)

    def check_fence(self) -> None:
        for writer in self.writers.values():
            writer.refresh()

    def versions(self) -> dict[str, int]:
        return {name: writer.version for name, writer in self.writers.items()}

    def count_touched_files(self) -> int:
        """Changes whenever the driver itself has read or written another file."""
        return sum(writer.touched_files for writer in self.writers.values())

    def has_begun(self, batch_id: int) -> bool:
        """Whether a table has the batch already, as of the last look."""
        return any(writer.last_batch() >= batch_id for writer in self.writers.values())

    def marks(self) -> Marks:
        """The marks of `forgotten` that this generation has carried out: what a batch and its replay go by."""
        return self._register.marks().up_to(min(writer.last_mark() for writer in self.writers.values()))

    def has_new_marks(self) -> bool:
        return min(writer.last_mark() for writer in self.writers.values()) < self._register.marks().newest

    def forget(self) -> dict[str, int] | None:
        """Carries out new marks; returns the rows that each table lost, or None when there are no new marks.

        Only between two batches, and what another attempt has begun is finished first: then every table that has a
        batch has it by the same marks.
        """
        self.check_fence()
        marks, reached = self._register.marks(), [writer.last_mark() for writer in self.writers.values()]
        targets = {max(reached), marks.newest} if min(reached) < marks.newest else set()
        lost = [
            forgetting.carry_out(self.writers, self.spec, marks.up_to(target))
            for target in sorted(targets)
            if target > min(reached)
        ]
        return {name: sum(part[name] for part in lost) for name in BIG_TABLES} if lost else None

    def commit_arrow(self, batch_id: int, rows: pa.Table) -> Counts:
        """Commits a batch that fits the driver."""
        batch = joined_changes.split_batch(forgetting.skip_forgotten(rows, self.marks(), self.spec))
        sources = {
            "users": joined_changes.user_rows(batch, self.spec.usersTopic),
            "accounts": joined_changes.account_rows(batch, self.spec.accountsTopic),
            "rejects": joined_changes.reject_rows(batch, self.spec.usersTopic, self.spec.accountsTopic),
        }
        for name, source in sources.items():
            self.commit_appended(name, batch_id, source)
        self.commit_joined(batch_id, joined_changes.joined_changes(batch, self.spec.joinType))
        forgotten = pc.sum(pc.equal(batch.rejects["reason"], forgetting.REASON)).as_py() or 0
        return Counts(batch.input_rows, batch.rejects.num_rows - forgotten, batch.tombstones, batch.pairs.num_rows)

    def commit_appended(self, name: str, batch_id: int, rows: pa.Table) -> None:
        writer = self.writers[name]
        writer.commit(batch_id, lambda _: Revision([writer.write(rows)] if rows.num_rows else []))

    def commit_files(self, name: str, batch_id: int, added: list[AddAction]) -> None:
        self.writers[name].commit(batch_id, lambda _: Revision(added))

    def commit_joined(self, batch_id: int, joined: JoinedChanges, added: list[AddAction] | None = None) -> None:
        """Adds the new rows (or files that hold them) and revises older rows, in one commit."""
        writer = self.writers["joined"]

        def revise(table: DeltaTable) -> Revision:
            revision = Revision(list(added or []))
            replacing = [joined.appended]
            wanted = self._files_to_revise(table, joined)
            with ThreadPoolExecutor(REVISING_THREADS) as pool:
                for file, rewritten in zip(wanted, pool.map(rewrite, wanted), strict=True):
                    if rewritten is None:
                        continue
                    revision.removed.append(files.remove_file(self.spec.generation, file.path, file.size))
                    revision.added.extend(rewritten.added)
                    replacing += rewritten.replacing
            revision.added.extend(forgetting.write_joined(writer, pa.concat_tables(replacing)))
            return revision

        def rewrite(file: files.FileRange) -> RewrittenFile | None:
            is_touched = any(
                joined_changes.find_revised(rows, joined)[0].any()
                for rows in writer.scan(file.path, joined_changes.POSITIONS)
            )
            return self._rewrite(file, joined) if is_touched else None

        writer.commit(batch_id, revise)

    def _rewrite(self, file: files.FileRange, joined: JoinedChanges) -> RewrittenFile:
        writer, rewritten = self.writers["joined"], RewrittenFile([], [joined_changes.ROW_SCHEMA.empty_table()])

        def revise() -> Iterator[pa.Table]:
            for rows in writer.scan(file.path):
                found = joined_changes.revise_rows(rows, joined)
                if found is not None:
                    rewritten.replacing.append(found.replacing)
                yield rows if found is None else found.kept

        for kept in gather(revise(), FILE_ROWS, FILE_BYTES):
            if level_of(file.size) == 0 and kept.nbytes <= HELD_BYTES:
                rewritten.replacing.append(kept)
            else:
                rewritten.added.extend(forgetting.write_joined(writer, kept))
        return rewritten

    def _files_to_revise(self, table: DeltaTable, joined: JoinedChanges) -> list[files.FileRange]:
        if joined.revised.num_rows == 0:
            return []
        live = files.live_files(table, self.spec.generation, joined.side)
        if joined.drop_only:
            live = [file for file in live if file.rows_without_account]
        return files.files_that_may_hold(live, np.unique(joined_changes.keys_of(joined.revised, joined.side)))
