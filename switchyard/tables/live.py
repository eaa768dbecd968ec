"""Resolve the stable names at this moment, by following the Delta logs.

While nothing has changed this costs a few checks for files. It opens nothing before the first call: delta-rs does not
survive a fork.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from switchyard.layout import BIG_TABLES, Layout
from switchyard.tables.commits import Commit, DataFile, FollowedTable
from switchyard.tables.folders import Folder
from switchyard.tables.long_text import cut_rows
from switchyard.tables.pieces import scan_file
from switchyard.tables.progress import Progress, newest_progress
from switchyard.tables.queries import WINDOW_ROWS
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.stable_names import WHOLE_NAMES, newest_table, resolve_name
from switchyard.tables.status import Status

# Kept whole in memory, because the state of a request follows from all of it; of other small tables the newest rows.
WHOLE = "swap_history"
MOST_BYTES = 32 * 2**20
APPENDED = frozenset(WHOLE_NAMES.values()) - {"status"}
"""Tables to which rows are only added: a commit that also removes files has only moved rows."""


@dataclass(frozen=True)
class Moment:
    """The active generation and the versions to read it at."""

    status: Status | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Rows:
    """A small table in memory: its newest rows, newest last."""

    version: int
    rows: pa.Table


@dataclass(frozen=True)
class Files:
    """A big table on disk: the files of the active generation at the version to read."""

    version: int
    generation: int | None
    folder: Folder
    files: tuple[DataFile, ...]


class LiveTables:
    """Shared by all requests of a process."""

    def __init__(self, layout: Layout) -> None:
        self._lock = threading.RLock()
        self._small = {
            name: SmallTable(layout, name, table, sys.maxsize if name == WHOLE else WINDOW_ROWS)
            for name, table in WHOLE_NAMES.items()
        }
        self._big = {table: BigTable(layout, table) for table in BIG_TABLES}
        self._progress = ProgressBoard(layout)

    def moment(self) -> Moment:
        with self._lock:
            rows = self._small["orchestrator_status"].look().rows.to_pylist()
            if not rows:
                return Moment()
            status = Status(**rows[-1])
            return Moment(status, self._progress.newest(status.generation))

    def read(self, name: str) -> Rows | Files:
        """Return the rows or files that a stable name means now; an absent table has none."""
        table = resolve_name(name)
        with self._lock:
            if name in WHOLE_NAMES:
                return self._small[name].look()
            return self._big[table].look(self.moment().progress)


class SmallTable:
    def __init__(self, layout: Layout, name: str, table: str, most: int) -> None:
        self._layout, self._name, self._table, self._most = layout, name, table, most
        self._followed = FollowedTable(layout, table)
        self._rows = Rows(-1, SCHEMAS[table].empty_table())

    def look(self) -> Rows:
        commits = self._followed.advance()
        if self._followed.version == self._rows.version:
            return self._rows
        if commits is None or any(commit.removed and commit.has_new_rows for commit in commits):
            is_whole = self._name == WHOLE
            rows, _ = newest_table(self._layout, self._name, self._most, None if is_whole else MOST_BYTES)
            rows = rows if is_whole else cut_rows(rows)
        else:
            fresh = (part for commit in commits for part in scan_new_rows(self._followed, commit))
            rows = pa.concat_tables([self._rows.rows, *(fresh if self._name == WHOLE else map(cut_rows, fresh))])
            # A table of thousands of one-row pieces is slow to read.
            rows = rows.slice(max(0, rows.num_rows - self._most)).combine_chunks()
        self._rows = Rows(self._followed.version, rows)
        return self._rows


class BigTable:
    def __init__(self, layout: Layout, table: str) -> None:
        self._followed = FollowedTable(layout, table)
        self._known = Files(-1, None, self._followed.folder, ())

    def look(self, progress: Progress | None) -> Files:
        if progress is None:
            return Files(-1, None, self._followed.folder, ())
        self._followed.advance(progress.version_of(self._followed.name))
        if (self._known.version, self._known.generation) != (self._followed.version, progress.generation):
            live = tuple(file for file in self._followed.files.values() if file.generation == progress.generation)
            self._known = Files(self._followed.version, progress.generation, self._followed.folder, live)
        return self._known


class ProgressBoard:
    """The newest progress of each generation that was asked for."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._followed = FollowedTable(layout, "progress")
        self._newest: dict[int, Progress] = {}

    def newest(self, generation: int) -> Progress | None:
        commits = self._followed.advance()
        if commits is None:
            self._newest.clear()
        for commit in commits or []:
            for rows in scan_new_rows(self._followed, commit):
                for row in rows.to_pylist():
                    self._note(Progress(**row))
        if generation not in self._newest:
            found = newest_progress(self._layout, generation)
            if found is None:
                return None
            self._newest[generation] = found
        return self._newest[generation]

    def _note(self, row: Progress) -> None:
        known = self._newest.get(row.generation)
        if known is not None and (row.attempt, row.at) > (known.attempt, known.at):
            self._newest[row.generation] = row


def scan_new_rows(followed: FollowedTable, commit: Commit) -> Iterator[pa.Table]:
    """Read the new rows of a commit, piece by piece; rows that only moved to another file are not new."""
    if not commit.has_new_rows or (commit.removed and followed.name in APPENDED):
        return
    schema = SCHEMAS[followed.name]
    for file in commit.added:
        for rows in scan_file(followed.folder, file.path, schema):
            if file.generation is None:
                yield rows
                continue
            generation = pa.repeat(pa.scalar(file.generation, pa.int64()), rows.num_rows)
            yield rows.set_column(schema.get_field_index("generation"), schema.field("generation"), generation)
