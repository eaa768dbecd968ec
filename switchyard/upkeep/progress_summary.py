"""Shorten `progress`: drop old heartbeats, and add up old batches in one row.

The audit adds up all batches of a generation and checks that each begins where the one before ended. A summary row
stands for an unbroken chain of batches: it begins where the first began and has the sums of all. A break stays visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from switchyard.tables.schemas import TIMESTAMP

SUMS = ("inputRows", "rejectedRows", "tombstones")
KNOWN_BY = ("attempt", "batchId", "at", "startOffsets")
Numbers = np.ndarray[Any, np.dtype[np.int64]]
LARGEST = ("rowsPerSecond", "batchMs")


@dataclass(frozen=True)
class Known:
    """What follows only from all rows of a generation."""

    batches: Numbers
    """The batches that were reported, and how often each."""
    times: Numbers
    newest: tuple[int, int]
    """Attempt and time of the last row of the newest attempt, which has the position of the generation."""


def know_progress(pieces: Iterable[pa.Table]) -> Known:
    """Read rows with the columns KNOWN_BY."""
    ids, newest = [np.empty(0, np.int64)], (-1, 0)
    for rows in pieces:
        attempts, at = rows["attempt"].to_numpy(), rows["at"].cast(pa.int64()).to_numpy()
        if len(attempts):
            newest = max(newest, (int(attempts.max()), int(at[attempts == attempts.max()].max())))
        ids.append(rows.filter(pc.is_valid(rows["startOffsets"]))["batchId"].to_numpy())
    batches, times = np.unique(np.concatenate(ids), return_counts=True)
    return Known(batches, times, newest)


def summarize_progress(rows: pa.Table, before: datetime, known: Known | None = None) -> pa.Table:
    """Shorten the rows of a generation that are older than `before`; return all sorted by time.

    `known` is needed if these are not all rows of the generation.
    """
    rows = rows.sort_by([("at", "ascending")])
    if rows.num_rows == 0:
        return rows
    known = known or know_progress([rows])
    is_old = pc.less(rows["at"], pa.scalar(before, TIMESTAMP))
    is_batch = pc.is_valid(rows["startOffsets"])
    recent = rows.filter(pc.invert(is_old))
    again = recent.filter(pc.is_valid(recent["startOffsets"]))["batchId"]
    old = rows.filter(pc.and_(is_old, is_batch))
    is_elsewhere = _is_elsewhere(rows.filter(is_batch)["batchId"], old["batchId"], known)
    is_again = pc.is_in(old["batchId"], again.combine_chunks())
    # A resumed generation may report its last batch again, which replaces the row: it must not hold sums of others.
    is_last = pc.equal(old["batchId"], pa.scalar(known.batches.max(initial=-1)))
    is_apart = pc.or_(is_last, is_elsewhere)
    heartbeat = rows.filter(pc.and_(pc.and_(is_old, pc.invert(is_batch)), pa.array(_is_newest(rows, known))))
    chain = old.filter(pc.invert(pc.or_(is_again, is_apart)))
    summary = [summarize_batches(chain, known), keep_last(old.filter(pc.and_(is_apart, pc.invert(is_again))))]
    return pa.concat_tables([*summary, heartbeat, recent]).sort_by([("at", "ascending")])


def _is_elsewhere(here: pa.ChunkedArray, asked: pa.ChunkedArray, known: Known) -> pa.Array:
    """Return whether a batch was also reported in rows that are not here, which may hold its last report."""
    batches, times = np.unique(here.to_numpy(), return_counts=True)
    all_times = known.times[np.searchsorted(known.batches, batches)]
    return pa.array(np.isin(asked.to_numpy(), batches[all_times > times]))


def _is_newest(rows: pa.Table, known: Known) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the last row of the newest attempt, if it is among these."""
    attempts, at = rows["attempt"].to_numpy(), rows["at"].cast(pa.int64()).to_numpy()
    is_newest = (attempts == known.newest[0]) & (at == known.newest[1])
    is_newest[np.flatnonzero(is_newest)[:-1]] = False
    return np.asarray(is_newest)


def keep_last(batches: pa.Table) -> pa.Table:
    """Keep the last report of each batch, in order."""
    ordered = batches.sort_by([("batchId", "ascending"), ("at", "ascending")])
    ids = ordered["batchId"].to_numpy()
    return ordered.filter(pa.array(np.append(ids[1:] != ids[:-1], True)[: len(ids)]))


def summarize_batches(batches: pa.Table, known: Known) -> pa.Table:
    """Make one row of each unbroken chain of batches; of a batch that was reported twice the last report counts."""
    if batches.num_rows == 0:
        return batches
    ordered = keep_last(batches)
    starts, ends = (ordered[name].to_numpy() for name in ("startOffsets", "endOffsets"))
    # A batch without records may lie between two that fit together: its own row must not come before theirs.
    is_apart = np.diff(np.searchsorted(known.batches, ordered["batchId"].to_numpy())) != 1
    is_first = np.append(True, (starts[1:] != ends[:-1]) | is_apart)
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(is_first)) - 1
    summary = ordered.take(pa.array(lasts))
    summary = _replace(summary, "startOffsets", ordered["startOffsets"].take(pa.array(firsts)))
    for name in SUMS:
        summary = _replace(summary, name, pa.array(np.add.reduceat(ordered[name].to_numpy(), firsts)))
    for name in LARGEST:
        summary = _replace(summary, name, pa.array(np.maximum.reduceat(ordered[name].to_numpy(), firsts)))
    return summary


def _replace(rows: pa.Table, name: str, values: pa.ChunkedArray | pa.Array) -> pa.Table:
    position = rows.schema.get_field_index(name)
    return rows.set_column(position, rows.schema.field(name), values)
