"""Find the versions of the big tables that progress rows name: vacuum keeps them while a reader may open them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from switchyard.layout import BIG_TABLES, Layout, batch_app_id, forgotten_app_id
from switchyard.tables import store
from switchyard.tables.commits import files_since, list_data_files
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import scan_files
from switchyard.tables.progress import newest_progress, repeat_row, report
from switchyard.tables.schemas import PROGRESS, TIMESTAMP

TICK = timedelta(microseconds=1)


def read_referenced_versions(layout: Layout, generations: Collection[int], since: datetime) -> dict[str, set[int]]:
    """Return, by table, the versions in each generation's newest row, and in all rows since a moment."""
    newest = [row for row in (newest_progress(layout, generation) for generation in generations) if row]
    referenced = {name: {row.version_of(name) for row in newest} for name in BIG_TABLES}
    for rows in _scan_since(layout, generations, since):
        for name, versions in referenced.items():
            versions.update(pc.unique(rows[f"{name}Version"]).to_pylist())
    return referenced


def _scan_since(layout: Layout, generations: Collection[int], since: datetime) -> Iterator[pa.Table]:
    if not store.has_table(layout, "progress"):
        return
    table = store.open_table(layout, "progress")
    live = [file for file in list_data_files(table).values() if file.generation in generations]
    recent = {file.path: file.rows for file in files_since(live, ["at"], since)}
    columns = ["at", *(f"{name}Version" for name in BIG_TABLES)]
    for rows in scan_files(Folder.at(table.table_uri), recent, PROGRESS, columns):
        yield rows.filter(pc.greater_equal(rows["at"], pa.scalar(since, TIMESTAMP)))


def last_batches(layout: Layout, generations: Collection[int]) -> dict[int, datetime | None]:
    """Return when each generation last reported a batch; None if it never has."""
    table = store.open_table(layout, "progress")
    return {generation: _last_batch(table, generation) for generation in generations}


def _last_batch(table: DeltaTable, generation: int) -> datetime | None:
    live = {file.path: file.rows for file in list_data_files(table).values() if file.generation == generation}
    pieces = scan_files(Folder.at(table.table_uri), live, PROGRESS, ["at", "startOffsets"])
    latest = [pc.max(rows["at"].filter(rows["startOffsets"].is_valid())).as_py() for rows in pieces]
    return max(filter(None, latest), default=None)


def reference_newest_versions(layout: Layout, generation: int) -> bool:
    """Report the newest versions for a retired generation, so that vacuum need not keep the old ones for it."""
    last = newest_progress(layout, generation)
    if last is None:
        return False
    tables = {name: store.open_table(layout, name) for name in BIG_TABLES}
    written = [table.transaction_version(batch_app_id(generation)) for table in tables.values()]
    marks = {table.transaction_version(forgotten_app_id(generation)) or 0 for table in tables.values()}
    # The rows are the same at both versions, unless an attempt died within a batch, or while it carried out a mark.
    is_half_done = len(marks) > 1 or any(batch is not None and batch > last.batchId for batch in written)
    versions = {name: int(table.version()) for name, table in tables.items()}
    if is_half_done or versions == last.versions():
        return False
    # Nearly the same time: the row is no sign of life.
    report(layout, repeat_row(last, last.at + TICK, versions))
    return True
