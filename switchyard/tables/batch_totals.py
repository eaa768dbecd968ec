"""Add up the batches of a generation in `progress`, for audits, without a Python object for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from switchyard.layout import Layout
from switchyard.offsets import Offsets, from_json
from switchyard.tables import store
from switchyard.tables.commits import list_data_files
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import scan_files
from switchyard.tables.schemas import PROGRESS

COLUMNS = ["batchId", "at", "inputRows", "tombstones", "startOffsets", "endOffsets"]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Chain:
    """Sums over the batches of a generation; one that was reported twice counts once, as last reported."""

    batches: int = 0
    inputRows: int = 0
    tombstones: int = 0
    breaks: int = 0
    """How many batches do not begin where the one before ended."""
    start: Offsets | None = None
    end: Offsets | None = None


def read_chain(layout: Layout, generation: int, up_to: int) -> Chain:
    """Add up the batches of a generation up to the batch `up_to`, included."""
    if not store.has_table(layout, "progress"):
        return Chain()
    table = store.open_table(layout, "progress")
    live = {file.path: file.rows for file in list_data_files(table).values() if file.generation == generation}
    links = _Links(up_to)
    for rows in scan_files(Folder.at(table.table_uri), live, PROGRESS, COLUMNS):
        links.add(rows)
    return links.join()


class _Links:
    """Six numbers for each batch: the columns, with a hash in place of each position."""

    def __init__(self, up_to: int) -> None:
        self._up_to = up_to
        self._numbers: list[Numbers] = []
        self._first: tuple[tuple[int, int], str] | None = None
        self._last: tuple[tuple[int, int], str] | None = None

    def add(self, rows: pa.Table) -> None:
        is_batch = pc.greater(pc.binary_length(rows["startOffsets"]).fill_null(0), 0)
        rows = rows.filter(pc.and_(is_batch, pc.less_equal(rows["batchId"], self._up_to)))
        numbers = np.empty((rows.num_rows, 6), np.int64)
        for place, name in enumerate(COLUMNS[:4]):
            numbers[:, place] = rows[name].cast(pa.int64()).fill_null(0).to_numpy()
        starts, ends = ([text or "{}" for text in rows[name].to_pylist()] for name in COLUMNS[4:])
        # Positions are only compared with each other, so their hashes are enough.
        for place, texts in ((4, starts), (5, ends)):
            numbers[:, place] = [hash(text) for text in texts]
        self._numbers.append(numbers)
        for (batch, at), start, end in zip(numbers[:, :2].tolist(), starts, ends, strict=True):
            if self._first is None or (-batch, at) > self._first[0]:
                self._first = (-batch, at), start
            if self._last is None or (batch, at) > self._last[0]:
                self._last = (batch, at), end

    def join(self) -> Chain:
        if self._first is None or self._last is None:
            return Chain()
        numbers = np.concatenate(self._numbers)
        numbers = numbers[np.lexsort((numbers[:, 1], numbers[:, 0]))]
        numbers = numbers[np.append(numbers[1:, 0] != numbers[:-1, 0], True)]
        breaks = int(np.sum(numbers[1:, 4] != numbers[:-1, 5]))
        records, tombstones = (int(numbers[:, place].sum()) for place in (2, 3))
        return Chain(len(numbers), records, tombstones, breaks, from_json(self._first[1]), from_json(self._last[1]))
