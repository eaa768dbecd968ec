"""progress, made shorter: heartbeats that nobody asks for any more go, and old batches are folded into one row.

The audit adds up all batches of a generation and checks that each begins where the one before has ended. A folded row
stands for a chain without a break: it begins where the first began and has the sums of all. A break stays visible.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from switchyard.tables.schemas import TIMESTAMP

SUMS = ("inputRows", "rejectedRows", "tombstones")
LARGEST = ("rowsPerSecond", "batchMs")


def fold_progress(rows: pa.Table, before: datetime) -> pa.Table:
    """The rows of one generation, with all that is older than a moment made short; sorted by time."""
    rows = rows.sort_by([("at", "ascending")])
    if rows.num_rows == 0:
        return rows
    is_old = pc.less(rows["at"], pa.scalar(before, TIMESTAMP))
    is_batch = pc.is_valid(rows["startOffsets"])
    batches = rows.filter(is_batch)
    recent = rows.filter(pc.invert(is_old))
    again = recent.filter(pc.is_valid(recent["startOffsets"]))["batchId"]
    # A resumed generation may report its last batch once more: that one must not hold the sums of others.
    last = pc.max(batches["batchId"])
    old = rows.filter(pc.and_(is_old, is_batch))
    old = old.filter(pc.invert(pc.is_in(old["batchId"], again.combine_chunks())))
    is_last = pc.equal(old["batchId"], last)
    heartbeat = rows.filter(pc.and_(pc.and_(is_old, pc.invert(is_batch)), pa.array(_is_newest(rows))))
    folded = [fold_batches(old.filter(pc.invert(is_last))), fold_batches(old.filter(is_last))]
    return pa.concat_tables([*folded, heartbeat, recent]).sort_by([("at", "ascending")])


def _is_newest(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Marks the last row of the newest attempt: it says where the generation stands."""
    attempts = rows["attempt"].to_numpy()
    mark = np.zeros(len(attempts), dtype=bool)
    mark[np.flatnonzero(attempts == attempts.max())[-1]] = True
    return mark


def fold_batches(batches: pa.Table) -> pa.Table:
    """One row for each unbroken chain of batches; a batch that was reported twice counts once, as last reported."""
    if batches.num_rows == 0:
        return batches
    ordered = batches.sort_by([("batchId", "ascending"), ("at", "ascending")])
    ids = ordered["batchId"].to_numpy()
    ordered = ordered.filter(pa.array(np.append(ids[1:] != ids[:-1], True)))
    starts, ends = ordered["startOffsets"].to_pylist(), ordered["endOffsets"].to_pylist()
    is_first = np.array([True] + [start != end for start, end in zip(starts[1:], ends[:-1], strict=True)])
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(is_first)) - 1
    folded = ordered.take(pa.array(lasts))
    folded = _replace(folded, "startOffsets", ordered["startOffsets"].take(pa.array(firsts)))
    for name in SUMS:
        folded = _replace(folded, name, pa.array(np.add.reduceat(ordered[name].to_numpy(), firsts)))
    for name in LARGEST:
        folded = _replace(folded, name, pa.array(np.maximum.reduceat(ordered[name].to_numpy(), firsts)))
    return folded


def _replace(rows: pa.Table, name: str, values: pa.ChunkedArray | pa.Array) -> pa.Table:
    position = rows.schema.get_field_index(name)
    return rows.set_column(position, rows.schema.field(name), values)
