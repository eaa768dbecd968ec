"""Write the big tables for a driver: fenced, and each micro-batch once. Nothing else writes them.

An attempt writes its number into the Delta log of every big table before it starts. Each commit reads that marker and
must become the very next version, so a replaced attempt can never commit after its successor has claimed the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from switchyard.errors import FencedError, LostRaceError
from switchyard.layout import BIG_TABLES, Layout, attempt_app_id, batch_app_id, forgotten_app_id
from switchyard.tables import files, store
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import FILE_BYTES, gather, scan_file
from switchyard.tables.schemas import FILE_SCHEMAS
from switchyard.tables.transaction_markers import Markers

FILE_ROWS = 2**20


@dataclass(frozen=True)
class Revision:
    """Files to add to a table, and files that these replace."""

    added: list[AddAction] = field(default_factory=list)
    removed: list[RemoveAction] = field(default_factory=list)


def claim_attempt(layout: Layout, generation: int) -> int:
    """Take the next attempt number of a generation; fence every older attempt out of all big tables."""
    attempt = 0

    def take_next(table: DeltaTable) -> store.Change:
        nonlocal attempt
        attempt = 1 + (table.transaction_version(attempt_app_id(generation)) or 0)
        return store.Change(markers={attempt_app_id(generation): attempt})

    def follow(table: DeltaTable) -> store.Change:
        check_fence(table.transaction_version(attempt_app_id(generation)), generation, attempt)
        return store.Change(markers={attempt_app_id(generation): attempt})

    first, *others = BIG_TABLES
    store.transact(layout, first, take_next)
    for name in others:
        store.transact(layout, name, follow)
    return attempt


def check_fence(newest: int | None, generation: int, attempt: int) -> None:
    if newest is not None and newest > attempt:
        raise FencedError(
            f"attempt {attempt} of generation {generation} was replaced by attempt {newest} and must not write"
        )


class TableWriter:
    """Writes one big table for one attempt of one generation."""

    def __init__(self, layout: Layout, name: str, generation: int, attempt: int) -> None:
        self.name = name
        self.generation = generation
        self.attempt = attempt
        self.touched_files = 0
        """About how many files were read or written so far."""
        self.folder = Folder.at(layout.table(name))
        self._table = store.open_table(layout, name)
        app_ids = (attempt_app_id(generation), batch_app_id(generation), forgotten_app_id(generation))
        self._markers = Markers(self._table, self.folder, app_ids)

    def refresh(self) -> DeltaTable:
        """Return the table at its newest version; raise if this attempt may no longer write."""
        self._table.update_incremental()
        check_fence(self._markers.get(attempt_app_id(self.generation)), self.generation, self.attempt)
        return self._table

    @property
    def version(self) -> int:
        return int(self._table.version())

    def has_batch(self, batch_id: int) -> bool:
        self.refresh()
        return self.last_batch() >= batch_id

    @property
    def schema(self) -> pa.Schema:
        return FILE_SCHEMAS[self.name]

    def write(self, rows: pa.Table) -> AddAction:
        self.touched_files += 1
        return files.write_file(self.folder, self.generation, rows.select(self.schema.names))

    def scan(self, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Read a data file, piece by piece."""
        self.touched_files += 1
        return scan_file(self.folder, path, self.schema, columns)

    def write_all(self, pieces: Iterable[pa.Table]) -> list[AddAction]:
        """Write rows as they come, into as many files as they need."""
        return [self.write(rows) for rows in gather(pieces, FILE_ROWS, FILE_BYTES)]

    def commit(self, batch_id: int, revise: Callable[[DeltaTable], Revision]) -> int:
        """Commit a batch, unless the table has it already; return the table's version."""
        return self._commit(batch_app_id(self.generation), batch_id, revise, is_always=False)

    def last_mark(self) -> int:
        """Return the last mark of `forgotten` that this table has carried out, as of the last refresh."""
        return self._markers.get(forgotten_app_id(self.generation)) or 0

    def last_batch(self) -> int:
        """Return the last batch that this table has, as of the last refresh; -1 before any."""
        last = self._markers.get(batch_app_id(self.generation))
        return -1 if last is None else last

    def commit_mark(self, number: int, revise: Callable[[DeltaTable], Revision]) -> int:
        """Commit, once, what a mark of `forgotten` changes."""
        # A table without such rows records the mark as well.
        return self._commit(forgotten_app_id(self.generation), number, revise, is_always=True)

    def _commit(self, app_id: str, number: int, revise: Callable[[DeltaTable], Revision], is_always: bool) -> int:
        """Commit a revision with its number, once; with `is_always` also one without files."""
        revision: Revision | None = None
        for _ in range(store.MOST_RACES):
            self.refresh()
            last = self._markers.get(app_id)
            if last is not None and last >= number:
                break
            # Compaction may have replaced a file that the revision removes: then it is computed again.
            if revision is None or not self._still_holds(revision):
                revision = revise(self._table)
            if not revision.added and not revision.removed and not is_always:
                break
            change = store.Change(
                added=revision.added,
                removed=revision.removed,
                markers={app_id: number, attempt_app_id(self.generation): self.attempt},
            )
            if store.commit_next(self._table, self.name, change):
                break
        else:
            raise LostRaceError(f"the table {self.name} is changed by others faster than it can be written; try again")
        return self.version

    def _still_holds(self, revision: Revision) -> bool:
        removed = {action.path for action in revision.removed}
        return not removed or removed <= set(store.list_paths(self._table))
