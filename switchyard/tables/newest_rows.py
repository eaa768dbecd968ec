"""Read the newest rows of some files, without holding more of them than are wanted.

First the times of all rows are read, to find the places of the newest rows; then only these rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from switchyard.tables.commits import DataFile
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import scan_file
from switchyard.tables.schemas import FILE_SCHEMAS, PARTITIONED, SCHEMAS

Numbers = np.ndarray[Any, np.dtype[np.int64]]
ROW_BYTES = 64
"""What a row takes beside its text."""
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Places:
    """Rows, the newest last: when each arrived, in which file it is, and which row of this file it is."""

    arrived: Numbers
    file: Numbers
    row: Numbers

    def merge(self, arrived: Numbers, file: int, first_row: int, limit: int) -> Places:
        """Add the rows of one more piece; of rows with the same time the last ones of the file stay."""
        is_full = len(self.arrived) >= limit
        new = np.flatnonzero(arrived >= self.arrived[0]) if is_full else np.arange(len(arrived))
        if len(new) == 0:
            return self
        everything = np.concatenate([self.arrived, arrived[new]])
        order = np.argsort(everything, kind="stable")[-limit:]
        files = np.concatenate([self.file, np.full(len(new), file)])
        rows = np.concatenate([self.row, new + first_row])
        return Places(everything[order], files[order], rows[order])


def read_newest(
    folder: Folder, name: str, live: Sequence[DataFile], stamps: Sequence[str], limit: int, most_bytes: int | None
) -> tuple[pa.Table, int]:
    """Return the newest rows of some files, newest last, and how many were left out because of their size."""
    places = find_newest(folder, name, live, stamps, limit)
    found = [SCHEMAS[name].empty_table()]
    ranks = [np.empty(0, np.int64)]
    for number, file in enumerate(live):
        mine = np.flatnonzero(places.file == number)
        mine = mine[np.argsort(places.row[mine])]
        for rank, rows in _take(folder, name, file, places.row[mine]):
            found.append(rows)
            ranks.append(mine[rank])
            if most_bytes is not None and sum(part.nbytes for part in found) > most_bytes * 5 // 4:
                found, ranks = _fit(found, ranks, most_bytes)
    rows = _fit(found, ranks, most_bytes)[0][0]
    return rows, len(places.row) - rows.num_rows


def find_newest(folder: Folder, name: str, live: Sequence[DataFile], stamps: Sequence[str], limit: int) -> Places:
    none = np.empty(0, np.int64)
    places = Places(none, none, none)
    for number, file in enumerate(live):
        first_row = 0
        for piece in scan_file(folder, file.path, SCHEMAS[name], stamps):
            latest = pc.max_element_wise(*[piece[stamp].cast(pa.int64()) for stamp in stamps])
            arrived = latest.fill_null(NEVER).to_numpy()
            places = places.merge(arrived, number, first_row, limit)
            first_row += piece.num_rows
    return places


def _take(folder: Folder, name: str, file: DataFile, wanted: Numbers) -> Iterator[tuple[Numbers, pa.Table]]:
    """Read the wanted rows of a file (numbers in order): pieces, with the indices of their rows in `wanted`."""
    schema = FILE_SCHEMAS[name]
    first = 0
    for piece in scan_file(folder, file.path, schema) if len(wanted) else ():
        low, high = np.searchsorted(wanted, [first, first + piece.num_rows])
        if high > low:
            rows = piece.take(pa.array(wanted[low:high] - first))
            if name in PARTITIONED:
                rows = rows.append_column("generation", pa.repeat(pa.scalar(file.generation, pa.int64()), len(rows)))
            yield np.arange(low, high), rows.select(SCHEMAS[name].names).cast(SCHEMAS[name])
        first += piece.num_rows
        if high == len(wanted):
            return


def _fit(found: list[pa.Table], ranks: list[Numbers], most_bytes: int | None) -> tuple[list[pa.Table], list[Numbers]]:
    """Keep the newest rows that fit, in order; one at least."""
    rank = np.concatenate(ranks)
    order = np.argsort(rank)
    rows = pa.concat_tables(found).take(pa.array(order))
    if most_bytes is None:
        return [rows], [rank[order]]
    fitting = np.searchsorted(np.cumsum(measure_rows(rows)[::-1]), most_bytes, side="right")
    first = max(0, rows.num_rows - max(1, int(fitting)))
    return [rows.slice(first).combine_chunks()], [rank[order][first:]]


def measure_rows(rows: pa.Table) -> Numbers:
    """Estimate the bytes of each row."""
    sizes = np.full(rows.num_rows, ROW_BYTES, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
    return sizes
