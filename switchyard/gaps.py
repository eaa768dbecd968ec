"""Offsets that were read over without a record being stored, and control messages without an outcome. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from switchyard.control import read_id
from switchyard.offsets import Offsets
from switchyard.swaps import Ledger

Positions = Mapping[tuple[str, int], "np.ndarray[Any, np.dtype[np.int64]]"]
"""(topic, partition) → offsets, in any order"""


@dataclass(frozen=True)
class Gap:
    """Offsets of one partition from `first` to just before `end`."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first


def find_gaps(starts: Offsets, ends: Offsets, stored: Positions) -> list[Gap]:
    """The offsets between two positions that are not stored; a partition that is new begins at 0."""
    return [
        gap
        for topic, partitions in sorted(ends.items())
        for partition, end in sorted(partitions.items())
        for gap in _gaps_of(
            topic, partition, starts.get(topic, {}).get(partition, 0), end, stored.get((topic, partition))
        )
    ]


def _gaps_of(
    topic: str, partition: int, start: int, end: int, offsets: np.ndarray[Any, np.dtype[np.int64]] | None
) -> Iterator[Gap]:
    known = np.unique(offsets) if offsets is not None else np.empty(0, np.int64)
    known = known[(known >= start) & (known < end)]
    edges = np.concatenate(([start - 1], known, [end]))
    for at in np.flatnonzero(np.diff(edges) > 1):
        yield Gap(topic, partition, int(edges[at]) + 1, int(edges[at + 1]))


def take_first(gaps: Iterable[Gap], most_offsets: int) -> list[Gap]:
    """As many gaps as hold so many offsets, the last one cut."""
    taken, left = [], most_offsets
    for gap in gaps:
        if left <= 0:
            break
        taken.append(Gap(gap.topic, gap.partition, gap.first, min(gap.end, gap.first + left)))
        left -= taken[-1].size
    return taken


def find_unsettled(messages: Sequence[Mapping[str, Any]], ledger: Ledger) -> list[str]:
    """The places of control messages (rows of `control_raw`) that have neither an outcome nor a swap under way."""
    return [
        f"{row['topic']}-{row['partition']}-{row['offset']}"
        for row in messages
        if not any(ledger.is_known(name) for name in _swap_ids(row))
    ]


def _swap_ids(row: Mapping[str, Any]) -> Iterator[str]:
    """The ids that a message may have in the history: its own, or its place, with its time if that was taken."""
    place, ts = f"{row['topic']}-{row['partition']}-{row['offset']}", row["ts"]
    yield place
    if isinstance(ts, datetime):
        yield f"{place}-{round(ts.timestamp() * 1000)}"
    if own_id := read_id(None if row["value"] is None else str(row["value"]).encode()):
        yield own_id
