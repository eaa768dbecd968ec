"""Write the rows of `joined`: new rows into new files, and revised rows with the rest of their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from switchyard.records import POSITIONS, RIGHT
from switchyard.tables import files
from switchyard.tables.joined_changes import ROW_SCHEMA, JoinedChanges, find_revised, keys_of, revise_rows
from switchyard.tables.merging import level_of
from switchyard.tables.pieces import FILE_BYTES, gather
from switchyard.tables.writer import FILE_ROWS, Revision, TableWriter

REVISING_THREADS = 2
HELD_BYTES = 2**20
"""What may be held in memory of a small file; its size on disk does not tell, as repeated text takes little there."""


@dataclass(frozen=True)
class RewrittenFile:
    """The files that replace one file of `joined`, and its rows that go into a file with those of others."""

    added: list[AddAction]
    replacing: list[pa.Table]


def commit_joined(writer: TableWriter, batch_id: int, changes: JoinedChanges, added: Sequence[AddAction] = ()) -> None:
    """Add the new rows, or files that hold them, and revise older rows, in one commit."""

    def revise(table: DeltaTable) -> Revision:
        revision = Revision(list(added))
        replacing = [changes.appended]
        wanted = _files_to_revise(table, writer.generation, changes)
        with ThreadPoolExecutor(REVISING_THREADS) as pool:
            for file, rewritten in zip(wanted, pool.map(rewrite, wanted), strict=True):
                if rewritten is None:
                    continue
                revision.removed.append(files.remove_file(writer.generation, file.path, file.size))
                revision.added.extend(rewritten.added)
                replacing += rewritten.replacing
        revision.added.extend(write_joined(writer, pa.concat_tables(replacing)))
        return revision

    def rewrite(file: files.LiveFile) -> RewrittenFile | None:
        # Spans are wide, so most candidates hold none of the rows. Positions alone tell, and are quick to read.
        is_touched = any(find_revised(rows, changes)[0].any() for rows in writer.scan(file.path, POSITIONS))
        return _rewrite(writer, file, changes) if is_touched else None

    writer.commit(batch_id, revise)


def write_joined(writer: TableWriter, rows: pa.Table) -> list[AddAction]:
    """Write unmatched rows into separate files, so that a batch that looks for them reads little else."""
    unmatched = rows[RIGHT.offset].is_null()
    if rows[RIGHT.offset].null_count in (0, rows.num_rows):
        return [writer.write(rows)] if rows.num_rows else []
    return [writer.write(rows.filter(part)) for part in (unmatched, pc.invert(unmatched))]


def _rewrite(writer: TableWriter, file: files.LiveFile, changes: JoinedChanges) -> RewrittenFile:
    rewritten = RewrittenFile([], [ROW_SCHEMA.empty_table()])

    def revise() -> Iterator[pa.Table]:
        for rows in writer.scan(file.path):
            found = revise_rows(rows, changes)
            if found is not None:
                rewritten.replacing.append(found.replacing)
            yield rows if found is None else found.kept

    for kept in gather(revise(), FILE_ROWS, FILE_BYTES):
        # All that is left of a small file is merged, so that the next batch has fewer files to write again.
        if level_of(file.size) == 0 and kept.nbytes <= HELD_BYTES:
            rewritten.replacing.append(kept)
        else:
            rewritten.added.extend(write_joined(writer, kept))
    return rewritten


def _files_to_revise(table: DeltaTable, generation: int, changes: JoinedChanges) -> list[files.LiveFile]:
    if changes.revised.num_rows == 0:
        return []
    side = changes.rule.leading
    live = files.list_files(table, generation, side.place)
    if not changes.rule.takes_latest:
        live = [file for file in live if file.unmatched_rows]
    return files.files_that_may_hold(live, np.unique(keys_of(changes.revised, side)))
