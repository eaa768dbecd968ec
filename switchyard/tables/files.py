"""Write the Parquet files of the tables, describe them for the Delta log, find them by their statistics."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from switchyard.records import PLACE, RIGHT, SIDES
from switchyard.tables.folders import Folder
from switchyard.tables.store import now_ms

STATISTICS_OF = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_floating)
HARDLY_REPEATED = {
    *("ts", "offset"),
    *(field.name for side in SIDES for field in side.fields if not field.is_repeated),
    *(column for side in SIDES for column in (side.ts, side.offset)),
}
"""Written without a dictionary: building one would take a third of the time and find few repeated values."""
LONG_VALUE = 256
"""Columns with longer values have no dictionary: their size on disk would not tell what they take in memory."""
PAGE_BYTES = 2**20


def generation_folder(generation: int) -> str:
    return f"generation={generation}"


def partition_values(generation: int | None) -> dict[str, str | None]:
    return {} if generation is None else {"generation": str(generation)}


def write_file(folder: Folder, generation: int | None, rows: pa.Table, data_change: bool = True) -> AddAction:
    """Write rows (without the generation column) as one new file; no commit names it yet.

    `generation` is None for a table that is not partitioned.
    """
    name = f"part-{uuid.uuid4()}.parquet"
    relative = name if generation is None else f"{generation_folder(generation)}/{name}"
    if generation is not None:
        folder.make(generation_folder(generation))
    footers: list[pq.FileMetaData] = []
    with folder.filesystem.open_output_stream(folder.full(relative)) as sink:
        with pq.ParquetWriter(
            sink,
            rows.schema,
            compression=_compression(folder, rows),
            use_dictionary=[name for name in rows.schema.names if _is_repeated(rows, name)],
            # How many rows are written before the size of a page is looked at: pages are read as a whole.
            write_batch_size=max(1, min(1024, PAGE_BYTES * rows.num_rows // max(1, rows.nbytes))),
            write_statistics=[column.name for column in rows.schema if _has_statistics(column)],
            metadata_collector=footers,
        ) as writer:
            writer.write_table(rows)
        size = sink.tell()
    return _add_action(relative, size, generation, footer_statistics(footers[0], rows.schema), data_change)


def _is_repeated(rows: pa.Table, name: str) -> bool:
    return name not in HARDLY_REPEATED and rows[name].nbytes <= LONG_VALUE * rows.num_rows


def _compression(folder: Folder, rows: pa.Table) -> str:
    # Unmatched rows are read and written again soon, when some find a pair. In a bucket, transfer would cost more.
    is_unmatched = RIGHT.offset in rows.column_names and rows[RIGHT.offset].null_count == rows.num_rows
    return "none" if is_unmatched and folder.is_local else "snappy"


def describe_file(folder: Folder, generation: int | None, relative: str, data_change: bool = True) -> AddAction:
    """Make the Delta log entry of a written file, with statistics from its footer."""
    size = folder.filesystem.get_file_info(folder.full(relative)).size
    with folder.filesystem.open_input_file(folder.full(relative)) as source:
        footer = pq.ParquetFile(source)
        statistics = footer_statistics(footer.metadata, footer.schema_arrow)
    return _add_action(relative, size, generation, statistics, data_change)


def _add_action(
    relative: str, size: int, generation: int | None, statistics: dict[str, Any], data_change: bool
) -> AddAction:
    return AddAction(
        path=relative,
        size=size,
        partition_values=partition_values(generation),
        modification_time=now_ms(),
        data_change=data_change,
        stats=json.dumps(statistics),
    )


def footer_statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the row count, and least, greatest and null count of the columns of numbers and times."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for position, column in enumerate(schema):
        if not _has_statistics(column):
            continue
        groups = [metadata.row_group(i).column(position).statistics for i in range(metadata.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[column.name] = sum(group.null_count for group in groups)
        valued = [group for group in groups if group.has_min_max]
        if valued:
            low, high = min(group.min for group in valued), max(group.max for group in valued)
            # NaN and infinity cannot be written as JSON.
            if not isinstance(low, float) or (math.isfinite(low) and math.isfinite(high)):
                lows[column.name], highs[column.name] = _json_value(low), _json_value(high)
    return {"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}


def _has_statistics(column: pa.Field) -> bool:
    return any(accepts(column.type) for accepts in STATISTICS_OF)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value


def remove_file(generation: int | None, relative: str, size: int, data_change: bool = True) -> RemoveAction:
    return RemoveAction(
        path=relative,
        data_change=data_change,
        deletion_timestamp=now_ms(),
        size=size,
        partition_values=partition_values(generation),
    )


COMPACTED = "compact-"
"""The names of the folders that compaction writes to begin with this."""


@dataclass(frozen=True)
class LiveFile:
    """A live file with the span of its positions, by which the stream finds its rows."""

    path: str
    size: int
    rows: int
    written: int
    """Milliseconds since 1970."""
    partitions: tuple[int, int] = (0, 0)
    offsets: tuple[int, int] = (0, 0)
    unmatched_rows: int = 0

    @property
    def is_across_partitions(self) -> bool:
        """Whether compaction filled it from two partitions, so that its span reaches farther than its rows."""
        return f"/{COMPACTED}" in self.path and self.partitions[0] != self.partitions[1]


def list_files(table: DeltaTable, generation: int | None, place: Sequence[str] = PLACE) -> list[LiveFile]:
    """List the live files of a generation (None: of a table without any), with the span of the columns `place`."""
    live = pa.table(table.get_add_actions(flatten=True))
    if generation is not None:
        live = live.filter(pc.equal(live["partition.generation"], generation))
    spans = [f"{end}.{name}" for name in place for end in ("min", "max")]
    names = ["path", "size_bytes", "num_records", "modification_time", *spans, f"null_count.{RIGHT.offset}"]
    return [
        LiveFile(
            path, size, rows or 0, _milliseconds(written), (low_p or 0, high_p or 0), (low or 0, high or 0), nulls or 0
        )
        for path, size, rows, written, low_p, high_p, low, high, nulls in zip(
            *(_column(live, name) for name in names), strict=True
        )
    ]


def _column(live: pa.Table, name: str) -> list[Any]:
    return list(live[name].to_pylist()) if name in live.column_names else [None] * live.num_rows


def _milliseconds(value: datetime | int) -> int:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else int(value)


def files_that_may_hold(files: Iterable[LiveFile], keys: np.ndarray[Any, np.dtype[np.int64]]) -> list[LiveFile]:
    """Return the files whose span contains at least one of the sorted keys (see `pack_positions`)."""
    return [file for file in files if _has_key_within(keys, file)]


def _has_key_within(keys: np.ndarray[Any, np.dtype[np.int64]], file: LiveFile) -> bool:
    first, last = file.partitions
    for partition in range(first, last + 1):
        low, high = (int(pack_position(partition, offset)) for offset in file.offsets)
        at = int(np.searchsorted(keys, low))
        if at < len(keys) and keys[at] <= high:
            return True
    return False


OFFSET_BITS = 44


def pack_position(partition: int, offset: int) -> int:
    return (partition << OFFSET_BITS) | offset


def pack_positions(partitions: pa.ChunkedArray, offsets: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Pack each partition and offset into one integer: fits 2**19 partitions of 2**44 records each."""
    high = partitions.to_numpy(zero_copy_only=False).astype(np.int64) << OFFSET_BITS
    return np.asarray(high | offsets.to_numpy(zero_copy_only=False).astype(np.int64))
