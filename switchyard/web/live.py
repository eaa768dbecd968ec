"""What the stable names mean at this moment, kept up to date by following the Delta logs.

A look while nothing has changed costs a few looks at files. Opens nothing before the first look: delta-rs does not
survive a fork.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

import pyarrow as pa

from switchyard.layout import BIG_TABLES, Layout
from switchyard.tables import store
from switchyard.tables.commits import Commit, DataFile, FollowedTable
from switchyard.tables.folders import Folder
from switchyard.tables.names import WHOLE_NAMES, newest_rows, resolve_name
from switchyard.tables.progress import Progress, newest_progress
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.status import Status
from switchyard.web.queries import WINDOW_ROWS

KEPT_ROWS = {"swap_history": sys.maxsize}
"""Of other small tables the newest are enough; what a request means follows from the whole history."""


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
        self.layout = layout
        self._lock = threading.RLock()
        self._small = {
            name: SmallTable(layout, name, table, KEPT_ROWS.get(name, WINDOW_ROWS))
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
        """What a stable name means now; an absent table has no rows."""
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
            found = newest_rows(self._layout, self._name, self._most)
            rows = store.rows_to_arrow(self._table, found)
        else:
            fresh = [row for commit in commits for row in read_new_rows(self._followed, commit)]
            rows = pa.concat_tables([self._rows.rows, store.rows_to_arrow(self._table, fresh)])
            # Copied together now and then: a table of thousands of one-row pieces is slow to read.
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
            for row in read_new_rows(self._followed, commit):
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


def read_new_rows(followed: FollowedTable, commit: Commit) -> list[store.Row]:
    """The rows that a commit has brought; what only moved to another file is not new."""
    if not commit.has_new_rows:
        return []
    rows: list[store.Row] = []
    for file in commit.added:
        found = store.read_file(followed.folder.as_filesystem(), file.path, followed.name)
        partition = {} if file.generation is None else {"generation": file.generation}
        rows += [row | partition for row in found]
    return rows
