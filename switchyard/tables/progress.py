"""Read and write `progress`: the heartbeat of every driver, and the Delta versions that belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from switchyard.layout import BIG_TABLES, Layout
from switchyard.tables import store
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import scan_files
from switchyard.tables.schemas import PROGRESS, TIMESTAMP

RATE_WINDOW = timedelta(seconds=10)
FEW_ROWS = 1_000
BIG_BATCH_ROWS = 5_000


@dataclass(frozen=True)
class Progress:
    generation: int
    attempt: int
    batchId: int
    at: datetime
    inputRows: int
    rowsPerSecond: float
    batchMs: int
    lag: int | None
    usersVersion: int
    accountsVersion: int
    joinedVersion: int
    rejectsVersion: int
    rejectedRows: int
    tombstones: int
    startOffsets: str | None
    """JSON {topic: {partition: offset}}; null on a heartbeat without a batch."""
    endOffsets: str | None
    rowsPerEvent: float | None = None
    """Pairs that the join has made of each record, on average of all so far."""
    recentRowsPerEvent: float | None = None
    """The same of the last records; null when the driver has just started."""
    movedAt: datetime | None = None
    """When a batch or a Spark task last moved, or nothing waited; null when no driver wrote the row."""
    executors: int | None = None
    """Null with a local master."""

    def version_of(self, table: str) -> int:
        return self.versions()[table]

    @property
    def order(self) -> tuple[int, datetime]:
        """Sorts the rows of an attempt."""
        # By batch first: a clock may be set back.
        return self.batchId, self.at

    def versions(self) -> dict[str, int]:
        return {name: int(getattr(self, f"{name}Version")) for name in BIG_TABLES}


def report(layout: Layout, progress: Progress, table: DeltaTable | None = None) -> None:
    table = table or store.open_table(layout, "progress")
    store.add_new_columns(table, "progress")
    store.append_rows(layout, "progress", [asdict(progress)], table)


def report_again(layout: Layout, last: Progress, at: datetime) -> None:
    """Report the same position at the newest versions, for a generation whose rows do not change any more."""
    report(layout, repeat_row(last, at, {name: int(store.open_table(layout, name).version()) for name in BIG_TABLES}))


def repeat_row(row: Progress, at: datetime, versions: Mapping[str, int]) -> Progress:
    """Return a heartbeat with the same position at other versions, without a batch or a driver."""
    changed: dict[str, Any] = {f"{name}Version": version for name, version in versions.items()}
    changed |= {"inputRows": 0, "rowsPerSecond": 0.0, "batchMs": 0, "rejectedRows": 0, "tombstones": 0}
    changed |= {"movedAt": None, "executors": None}
    return replace(row, at=at, startOffsets=None, **changed)


def newest_progress(layout: Layout, generation: int) -> Progress | None:
    """Return the last row of the newest attempt, whatever a replaced one still reports."""
    return last_of(recent_rows(layout, generation, timedelta()))


def newest_with_rate(layout: Layout, generation: int) -> tuple[Progress | None, float]:
    """Return the same, and the records a second over the last seconds in which the generation reported."""
    rows = recent_rows(layout, generation, RATE_WINDOW)
    return last_of(rows), round(sum(row.inputRows for row in rows) / RATE_WINDOW.total_seconds(), 1)


def last_of(rows: Iterable[Progress]) -> Progress | None:
    return max(rows, key=lambda row: row.order, default=None)


def bulk_rate(layout: Layout, without: Collection[int] = ()) -> float | None:
    """Return the records a second of the median big batch, by statistics alone; `without` some generations."""
    if not store.has_table(layout, "progress"):
        return None
    files = pa.table(store.open_table(layout, "progress").get_add_actions(flatten=True))
    is_other = pc.is_in(files["partition.generation"], pa.array(list(without), files["partition.generation"].type))
    files = files.filter(pc.invert(is_other))
    if "max.inputRows" not in files.column_names:
        return None
    # A small batch spends most of its time on other things than records. Only files of one row count: in a file that
    # maintenance has merged, the statistics mix several batches.
    is_big = pc.and_(pc.equal(files["num_records"], 1), pc.greater_equal(files["max.inputRows"], BIG_BATCH_ROWS))
    rates = files.filter(is_big)["max.rowsPerSecond"].to_pylist()
    return median(rates) if rates else None


def recent_rows(layout: Layout, generation: int, window: timedelta) -> list[Progress]:
    """Return the rows of the newest attempt since its newest file began, and those of a window before that.

    Statistics tell which files to open. The newest file is the one with the newest batch, whatever the clock says.
    """
    if not store.has_table(layout, "progress"):
        return []
    table = store.open_table(layout, "progress")
    files = pa.table(table.get_add_actions(flatten=True))
    files = files.filter(pc.equal(files["partition.generation"], generation))
    if files.num_rows == 0:
        return []
    attempt = pc.max(files["max.attempt"])
    files = files.filter(pc.equal(files["max.attempt"], attempt))
    newest = files.filter(pc.equal(files["max.batchId"], pc.max(files["max.batchId"])))
    newest = newest.sort_by([("min.at", "descending")]).slice(0, 1)
    # Of a file that many rows were merged into, the last row counts instead of the first.
    is_long = newest["num_records"][0].as_py() > FEW_ROWS
    first = _last_report(table, newest, attempt) if is_long else newest["min.at"][0].as_py()
    since = pa.scalar(first - window, TIMESTAMP)
    found = []
    for rows in _scan(table, files.filter(pc.greater_equal(files["max.at"], since))):
        mine = rows.filter(pc.and_(pc.equal(rows["attempt"], attempt), pc.greater_equal(rows["at"], since)))
        found += [Progress(**row | {"generation": generation}) for row in mine.to_pylist()]
    return found


def _last_report(table: DeltaTable, files: pa.Table, attempt: pa.Scalar) -> datetime:
    last = (-2, datetime.min.replace(tzinfo=UTC))
    for rows in _scan(table, files, ["attempt", "batchId", "at"]):
        mine = rows.filter(pc.equal(rows["attempt"], attempt))
        mine = mine.filter(pc.equal(mine["batchId"], pc.max(mine["batchId"])))
        if mine.num_rows:
            last = max(last, (mine["batchId"][0].as_py(), pc.max(mine["at"]).as_py()))
    return last[1]


def _scan(table: DeltaTable, files: pa.Table, columns: list[str] | None = None) -> Iterator[pa.Table]:
    paths = map(unquote, files["path"].to_pylist())
    rows_in = dict(zip(paths, files["num_records"].to_pylist(), strict=True))
    return scan_files(Folder.at(table.table_uri), rows_in, PROGRESS, columns)


def batches(layout: Layout, generation: int) -> list[Progress]:
    """Return one row for each committed micro-batch, in order; a batch that was reported twice counts once."""
    reported = [Progress(**row) for row in store.read_rows(layout, "progress", generation=generation)]
    by_batch = {row.batchId: row for row in sorted(reported, key=lambda row: row.at) if row.startOffsets}
    return [by_batch[batch_id] for batch_id in sorted(by_batch)]
