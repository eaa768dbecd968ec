"""Keep the small tables small: few files, and no rows of logs and progress beyond their keep time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from switchyard.layout import Layout
from switchyard.tables import files, store
from switchyard.tables.commits import list_data_files
from switchyard.tables.compaction import replace_files
from switchyard.tables.files import LiveFile, list_files
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import FILE_BYTES, gather, scan_files
from switchyard.tables.schemas import FILE_SCHEMAS, PROGRESS, TIMESTAMP
from switchyard.tables.stable_names import NEWEST_BY
from switchyard.upkeep.progress_summary import KNOWN_BY, know_progress, summarize_progress

ROWS_PER_FILE = 20_000
MOST_LOOKS = 5
BYTES_PER_FILE = 4 * 2**20
Keep = Callable[[Iterable[pa.Table]], Iterable[pa.Table]]
"""Returns, of the rows of some files, those that stay."""


@dataclass(frozen=True)
class Shortened:
    table: str
    files_before: int = 0
    files_after: int = 0
    rows_removed: int = 0

    def __add__(self, other: Shortened) -> Shortened:
        return Shortened(
            self.table,
            self.files_before + other.files_before,
            self.files_after + other.files_after,
            self.rows_removed + other.rows_removed,
        )


def shorten_logs(layout: Layout, before: datetime, dry_run: bool = False) -> Shortened:
    """Merge the files of `logs`; drop lines older than a moment."""

    def keep(pieces: Iterable[pa.Table]) -> Iterable[pa.Table]:
        return (rows.filter(pc.greater_equal(rows["ts"], pa.scalar(before, TIMESTAMP))) for rows in pieces)

    return shorten(layout, "logs", None, lambda table: keep, dry_run)


def shorten_progress(layout: Layout, generation: int, before: datetime | None, dry_run: bool = False) -> Shortened:
    """Summarize the rows of a generation that are older than a moment; None removes all, for a removed generation."""

    def choose(table: DeltaTable) -> Keep:
        if before is None:
            return lambda pieces: ()
        live = {file.path: file.rows for file in list_data_files(table).values() if file.generation == generation}
        known = know_progress(scan_files(Folder.at(table.table_uri), live, PROGRESS, KNOWN_BY))
        return lambda pieces: [summarize_progress(pa.concat_tables(pieces), before, known)]

    return shorten(layout, "progress", generation, choose, dry_run)


def merge_small(layout: Layout, name: str, dry_run: bool = False) -> Shortened:
    """Merge the files of a table that keeps all its rows."""
    return shorten(layout, name, None, lambda table: lambda pieces: pieces, dry_run)


def shorten(
    layout: Layout, name: str, generation: int | None, choose: Callable[[DeltaTable], Keep], dry_run: bool = False
) -> Shortened:
    """Write the rows that stay into few files; look again if another writer has replaced a file."""
    done = Shortened(name)
    for _ in range(MOST_LOOKS if store.has_table(layout, name) else 0):
        table = store.open_table(layout, name)
        keep = choose(table)
        groups = [_Group(layout, name, generation, files) for files in cut_by_time(table, name, generation)]
        results = [group.shorten(keep, dry_run) for group in groups]
        done = sum(filter(None, results), Shortened(name, rows_removed=done.rows_removed))
        if all(results):
            break
    return done


def cut_by_time(table: DeltaTable, name: str, generation: int | None) -> list[list[LiveFile]]:
    """Group the files, in the order of the times of their rows; each group becomes one file."""
    stamps = {path: file.stamps.get(NEWEST_BY[name][0]) for path, file in list_data_files(table).items()}
    firsts = {path: span[0] for path, span in stamps.items() if span}
    never = datetime.min.replace(tzinfo=UTC)
    groups: list[list[LiveFile]] = []
    rows = size = 0
    for file in sorted(list_files(table, generation), key=lambda file: (firsts.get(file.path, never), file.path)):
        rows, size = rows + file.rows, size + file.size
        if not groups or rows > ROWS_PER_FILE or size > BYTES_PER_FILE:
            groups, rows, size = [*groups, []], file.rows, file.size
        groups[-1].append(file)
    return groups


@dataclass(frozen=True)
class _Group:
    """Files whose rows fit into one."""

    layout: Layout
    name: str
    generation: int | None
    files: list[LiveFile]

    def shorten(self, keep: Keep, dry_run: bool) -> Shortened | None:
        """Write the rows that stay; return None if another writer has replaced one of the files."""
        before = sum(file.rows for file in self.files)
        kept = sum(rows.num_rows for rows in keep(self._scan()))
        removed = before - kept
        if not removed and len(self.files) == 1:
            return Shortened(self.name, 1, 1)
        if dry_run:
            return Shortened(self.name, len(self.files), -(-kept // ROWS_PER_FILE), removed)
        folder, stamp = Folder.at(self.layout.table(self.name)), NEWEST_BY[self.name][0]
        parts = (rows.sort_by(stamp) for rows in gather(keep(self._scan()), ROWS_PER_FILE, FILE_BYTES))
        added = [files.write_file(folder, self.generation, rows, bool(removed)) for rows in parts]
        if replace_files(self.layout, self.name, self.generation, self.files, added, data_change=bool(removed)):
            return Shortened(self.name, len(self.files), len(added), removed)
        return None

    def _scan(self) -> Iterator[pa.Table]:
        live = {file.path: file.rows for file in self.files}
        return scan_files(Folder.at(self.layout.table(self.name)), live, FILE_SCHEMAS[self.name])
