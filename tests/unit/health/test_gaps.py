"""Holes in what was stored, and control messages that nobody has settled."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.health.gaps import StoredOffsets, cut_spans, find_gaps, find_unsettled, take_first
from switchyard.offsets import Gap
from switchyard.policies import Target
from switchyard.swap.history import Entry, Event, Ledger

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@given(
    start=st.integers(0, 20),
    length=st.integers(0, 30),
    stored=st.lists(st.integers(0, 60), max_size=60),
    most=st.sampled_from([1, 7, 8, 1000]),
)
def test_stored_offsets_and_gaps_are_the_whole_range_and_do_not_overlap(
    start: int, length: int, stored: list[int], most: int
) -> None:
    def read(spans: list[Gap]) -> list[StoredOffsets]:
        return [("t", 0, np.array(part, np.int64)) for part in (stored[:9], stored[9:])]

    gaps = list(find_gaps({"t": {0: start}}, {"t": {0: start + length}}, read, most))
    missing = [offset for gap in gaps for offset in range(gap.first, gap.end)]
    assert missing == sorted(set(range(start, start + length)) - set(stored))
    assert all(before.end < after.first for before, after in pairwise(gaps))
    assert all(gap.size > 0 for gap in gaps)


def test_a_new_partition_begins_at_0_and_one_without_any_row_is_one_gap() -> None:
    gaps = find_gaps({"t": {0: 5}}, {"t": {0: 7, 1: 2}}, lambda spans: [("t", 0, np.array([6, 5]))])
    assert list(gaps) == [Gap("t", 1, 0, 2)]


@given(st.lists(st.integers(1, 30), max_size=5), st.integers(1, 40))
def test_spans_are_cut_into_windows_of_one_size_that_hold_each_partition_once(sizes: list[int], most: int) -> None:
    windows = list(cut_spans([Gap("t", number, 5, 5 + size) for number, size in enumerate(sizes)], most))
    offsets = [(span.partition, at) for window in windows for span in window for at in range(span.first, span.end)]
    assert offsets == [(number, 5 + at) for number, size in enumerate(sizes) for at in range(size)]
    held = [sum(span.size for span in window) for window in windows]
    assert all(size == most for size in held[:-1])
    assert all(size <= most for size in held)
    assert all(len({span.partition for span in window}) == len(window) for window in windows)


@pytest.mark.parametrize(("most", "sizes"), [(0, []), (2, [2]), (3, [3]), (4, [3, 1]), (99, [3, 5])])
def test_only_so_many_offsets_are_looked_at(most: int, sizes: list[int]) -> None:
    taken, size = take_first([Gap("t", 0, 1, 4), Gap("t", 0, 10, 15)], most)
    assert [gap.size for gap in taken] == sizes
    assert size == 8


def message(offset: int, value: str | None) -> dict[str, object]:
    return {"topic": "control", "partition": 0, "offset": offset, "ts": NOW, "value": value}


def test_a_message_is_settled_under_its_own_id_its_place_or_its_place_and_time() -> None:
    stamp = round(NOW.timestamp() * 1000)
    ids = ["mine", "control-0-1", f"control-0-2-{stamp}", "open"]
    outcomes = [Entry(name, Event.REJECTED, at=NOW) for name in ids[:3]]
    asked = Entry("open", Event.REQUESTED, 1, Target("u", "a", "left"), at=NOW)
    messages = [
        message(0, '{"id": " mine "}'),
        message(1, "not JSON"),
        message(2, None),
        message(3, '{"id": "open"}'),
        message(4, '{"id": "nobody knows it"}'),
        message(5, "{"),
        message(6, '{"id": "mine", "usersTopic": 7}'),
    ]
    assert find_unsettled(messages, Ledger.of([*outcomes, asked])) == ["control-0-4", "control-0-5"]
