"""Find offsets that were read but not stored, and control messages without an outcome. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from switchyard.offsets import Gap, Offsets
from switchyard.swap.control_message import read_id
from switchyard.swap.history import Ledger

Numbers = np.ndarray[Any, np.dtype[np.int64]]
StoredOffsets = tuple[str, int, Numbers]
"""Topic, partition, and some of the offsets that are stored, in any order."""

MOST_OFFSETS = 2**30
"""How many offsets are held in memory at once, with one bit for each."""
_BITS_AT_ONCE = 2**23


def find_gaps(
    starts: Offsets, ends: Offsets, read: Callable[[list[Gap]], Iterable[StoredOffsets]], most: int = MOST_OFFSETS
) -> Iterator[Gap]:
    """Find the offsets between two positions that are not stored; a new partition begins at 0.

    `read` returns what is stored in some spans; it is called for so many offsets (`most`) at a time.
    """
    spans = [
        Gap(topic, partition, starts.get(topic, {}).get(partition, 0), end)
        for topic, partitions in sorted(ends.items())
        for partition, end in sorted(partitions.items())
    ]
    windows = cut_spans([span for span in spans if span.size > 0], most)
    return _join(gap for window in windows for gap in _holes(window, read(window)))


def cut_spans(spans: Iterable[Gap], most: int) -> Iterator[list[Gap]]:
    """Group the same offsets, in order, by so many."""
    window, left = [], most
    for span in spans:
        first = span.first
        while first < span.end:
            end = min(span.end, first + left)
            window.append(Gap(span.topic, span.partition, first, end))
            left, first = left - (end - first), end
            if not left:
                yield window
                window, left = [], most
    if window:
        yield window


def _holes(window: Sequence[Gap], stored: Iterable[StoredOffsets]) -> Iterator[Gap]:
    spans = {(span.topic, span.partition): span for span in window}
    bits = {place: np.zeros(-(-span.size // 8), np.uint8) for place, span in spans.items()}
    for topic, partition, offsets in stored:
        if (span := spans.get((topic, partition))) is not None:
            at = offsets[(offsets >= span.first) & (offsets < span.end)] - span.first
            np.bitwise_or.at(bits[topic, partition], at >> 3, (1 << (at & 7)).astype(np.uint8))
    for place, span in spans.items():
        for first in range(0, span.size, _BITS_AT_ONCE):
            some = bits[place][first // 8 : (first + _BITS_AT_ONCE) // 8]
            is_stored = np.unpackbits(some, count=min(_BITS_AT_ONCE, span.size - first), bitorder="little")
            edges = np.flatnonzero(np.diff(is_stored, prepend=1, append=1)) + span.first + first
            for begin, end in edges.reshape(-1, 2).tolist():
                yield Gap(span.topic, span.partition, begin, end)


def _join(gaps: Iterable[Gap]) -> Iterator[Gap]:
    """Join gaps that were cut at the edge of a window."""
    held: Gap | None = None
    for gap in gaps:
        if held and (held.topic, held.partition, held.end) == (gap.topic, gap.partition, gap.first):
            held = Gap(held.topic, held.partition, held.first, gap.end)
            continue
        if held:
            yield held
        held = gap
    if held:
        yield held


def take_first(gaps: Iterable[Gap], most_offsets: int) -> tuple[list[Gap], int]:
    """Return the first gaps, with at most so many offsets together, and the number of offsets in all gaps."""
    taken, size = [], 0
    for gap in gaps:
        if size < most_offsets:
            taken.append(Gap(gap.topic, gap.partition, gap.first, min(gap.end, gap.first + most_offsets - size)))
        size += gap.size
    return taken, size


def find_unsettled(messages: Sequence[Mapping[str, Any]], ledger: Ledger) -> list[str]:
    """Return the places of control messages (rows of `control_raw`) that are not in the history."""
    return [
        f"{row['topic']}-{row['partition']}-{row['offset']}"
        for row in messages
        if not any(ledger.is_known(name) for name in _swap_ids(row))
    ]


def _swap_ids(row: Mapping[str, Any]) -> Iterator[str]:
    """Return the ids that a message may have in the history: the one it gives, its place, or its place and time."""
    place, ts = f"{row['topic']}-{row['partition']}-{row['offset']}", row["ts"]
    yield place
    if isinstance(ts, datetime):
        yield f"{place}-{round(ts.timestamp() * 1000)}"
    if own_id := read_id(None if row["value"] is None else str(row["value"]).encode()):
        yield own_id
