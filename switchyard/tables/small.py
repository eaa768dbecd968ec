"""The small tables, kept small: few files, and no rows of logs and progress beyond their keep time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from switchyard.layout import Layout
from switchyard.tables import files, store
from switchyard.tables.compaction import LiveFile, list_files, replace_files
from switchyard.tables.folders import Folder
from switchyard.tables.folding import fold_progress
from switchyard.tables.schemas import PARTITIONED, SCHEMAS, TIMESTAMP

ROWS_PER_FILE = 20_000
MOST_LOOKS = 5
Keep = Callable[[pa.Table], pa.Table]
SORTED_BY = {
    "swap_history": "at",
    "logs": "ts",
    "control_raw": "ts",
    "progress": "at",
    "audits": "at",
    "incidents": "at",
    "forgotten": "at",
}


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
    """Merges the files of `logs` and drops lines older than a moment."""
    limit = pa.scalar(before, TIMESTAMP)
    return shorten(layout, "logs", None, lambda rows: rows.filter(pc.greater_equal(rows["ts"], limit)), dry_run)


def shorten_progress(layout: Layout, generation: int, before: datetime | None, dry_run: bool = False) -> Shortened:
    """Folds the rows of a generation that are older than a moment; None removes all, when the generation is gone."""

    def keep(rows: pa.Table) -> pa.Table:
        return rows.slice(0, 0) if before is None else fold_progress(rows, before)

    return shorten(layout, "progress", generation, keep, dry_run)


def merge_small(layout: Layout, name: str, dry_run: bool = False) -> Shortened:
    """Merges the files of a table that keeps all its rows."""
    return shorten(layout, name, None, lambda rows: rows, dry_run)


def shorten(layout: Layout, name: str, generation: int | None, keep: Keep, dry_run: bool = False) -> Shortened:
    """Writes what `keep` leaves of the rows into few files; looks again when somebody else has replaced a file."""
    if not store.has_table(layout, name):
        return Shortened(name)
    for _ in range(MOST_LOOKS):
        table = store.open_table(layout, name)
        live = list_files(table, generation)
        rows = read_files(layout, name, live)
        kept = keep(rows).sort_by([(SORTED_BY[name], "ascending")])
        parts = -(-kept.num_rows // ROWS_PER_FILE)
        removed = rows.num_rows - kept.num_rows
        if not removed and len(live) <= max(1, parts):
            return Shortened(name, len(live), len(live))
        done = Shortened(name, len(live), parts, removed)
        if dry_run:
            return done
        folder = Folder.at(layout.table(name))
        slices = [kept.slice(start, ROWS_PER_FILE) for start in range(0, kept.num_rows, ROWS_PER_FILE)]
        added = [files.write_file(folder, generation, part, bool(removed)) for part in slices]
        if replace_files(layout, name, generation, live, added, data_change=bool(removed)):
            return done
    return Shortened(name, len(live), len(live))


def read_files(layout: Layout, name: str, live: list[LiveFile]) -> pa.Table:
    """The rows of some files; columns that these were written without are null."""
    schema = SCHEMAS[name]
    if name in PARTITIONED:
        schema = pa.schema([field for field in schema if field.name != "generation"])
    if not live:
        return schema.empty_table()
    folder = Folder.at(layout.table(name)).as_filesystem()
    return ds.dataset([file.path for file in live], schema=schema, filesystem=folder, format="parquet").to_table()
