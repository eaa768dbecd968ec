"""Holes in what was stored, and control messages that nobody has settled."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.gaps import Gap, find_gaps, find_unsettled, take_first
from switchyard.swaps import Entry, Event, Ledger, Target

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@given(
    start=st.integers(0, 20),
    length=st.integers(0, 30),
    stored=st.lists(st.integers(0, 60), max_size=60),
)
def test_stored_offsets_and_gaps_are_the_whole_range_and_do_not_overlap(
    start: int, length: int, stored: list[int]
) -> None:
    gaps = find_gaps({"t": {0: start}}, {"t": {0: start + length}}, {("t", 0): np.array(stored, np.int64)})
    missing = [offset for gap in gaps for offset in range(gap.first, gap.end)]
    assert missing == sorted(set(range(start, start + length)) - set(stored))
    assert all(before.end < after.first for before, after in pairwise(gaps))
    assert all(gap.size > 0 for gap in gaps)


def test_a_new_partition_begins_at_0_and_one_without_any_row_is_one_gap() -> None:
    gaps = find_gaps({"t": {0: 5}}, {"t": {0: 7, 1: 2}}, {("t", 0): np.array([6, 5])})
    assert gaps == [Gap("t", 1, 0, 2)]


@pytest.mark.parametrize(("most", "sizes"), [(0, []), (2, [2]), (3, [3]), (4, [3, 1]), (99, [3, 5])])
def test_only_so_many_offsets_are_looked_at(most: int, sizes: list[int]) -> None:
    assert [gap.size for gap in take_first([Gap("t", 0, 1, 4), Gap("t", 0, 10, 15)], most)] == sizes


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
