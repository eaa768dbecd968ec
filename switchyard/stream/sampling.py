"""Choose what the data gate compares, so that it takes as long for ten million rows as for one. Pure.

A row of `joined` belongs to exactly one event of the leading side: the user event, or for asof the account event. So
some events of that side, with all of their rows, are a sample that can be compared without a look at the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa

from switchyard.offsets import Offsets
from switchyard.records import PLACE

WINDOWS = 3
"""Windows of each partition: at its beginning, in the middle and at its end."""
LEAST_WINDOW = 50
"""The fewest offsets of a window: some may hold no event, as on a compacted topic"""


@dataclass(frozen=True)
class Window:
    """The offsets of one partition from `first` up to, but without, `after`."""

    partition: int
    first: int
    after: int

    @property
    def size(self) -> int:
        return self.after - self.first


def list_ranges(topic: str, start: Offsets, end: Offsets) -> list[Window]:
    """Return the offsets between two positions of a topic; a partition that is new begins at 0."""
    starts = start.get(topic, {})
    return [Window(partition, starts.get(partition, 0), after) for partition, after in end.get(topic, {}).items()]


def choose_windows(ranges: Sequence[Window], most_records: int) -> list[Window]:
    """Choose windows with about `most_records` offsets together, at least one of each range."""
    if sum(whole.size for whole in ranges) <= most_records:
        return list(ranges)
    share = max(LEAST_WINDOW, most_records // (WINDOWS * max(1, len(ranges))))
    return [window for whole in ranges for window in _cut_windows(whole, share)]


def _cut_windows(whole: Window, size: int) -> list[Window]:
    if whole.size <= WINDOWS * size:
        return [whole]
    spare = whole.size - size
    firsts = [whole.first + spare * number // (WINDOWS - 1) for number in range(WINDOWS)]
    return [Window(whole.partition, first, first + size) for first in firsts]


def choose_events(rows_of_events: Sequence[int], most_rows: int, seed: int = 0) -> list[int]:
    """Choose events to compare, as indexes into the list: so many that they make at most `most_rows` rows together.

    If every event makes more rows than that, the one with the fewest is compared alone.
    """
    # At random, so that people with many events and people with few may both be in the sample.
    places = list(range(len(rows_of_events)))
    Random(seed).shuffle(places)
    chosen, rows = [], 0
    for place in places:
        if rows + rows_of_events[place] <= most_rows:
            chosen.append(place)
            rows += rows_of_events[place]
    return sorted(chosen) or sorted(places, key=lambda place: rows_of_events[place])[:1]


def split_places(windows: Sequence[Window], events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the events within windows, and the places within windows, as columns of PLACE, that have none."""
    partitions, offsets = (events[name].to_numpy() for name in PLACE)
    kept, unstored = np.zeros(events.num_rows, bool), [events.select(PLACE).slice(0, 0)]
    for window in windows:
        is_inside = (partitions == window.partition) & (offsets >= window.first) & (offsets < window.after)
        kept |= is_inside
        free = np.setdiff1d(np.arange(window.first, window.after), offsets[is_inside])
        unstored.append(pa.table([np.full(len(free), window.partition), free], names=PLACE).cast(unstored[0].schema))
    return events.filter(pa.array(kept)), pa.concat_tables(unstored)
