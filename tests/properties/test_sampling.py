"""What the data gate compares: bounded, spread over the whole history, and never nothing."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from switchyard.records import PLACE
from switchyard.stream.sampling import (
    LEAST_WINDOW,
    WINDOWS,
    Window,
    choose_events,
    choose_windows,
    list_ranges,
    split_places,
)

ranges = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**8)), min_size=1, max_size=50).map(
    lambda spans: [Window(partition, first, first + size) for partition, (first, size) in enumerate(spans)]
)


@given(ranges, st.integers(0, 10**6))
def test_windows_lie_in_their_ranges_and_reach_both_ends(whole: list[Window], most: int) -> None:
    chosen = choose_windows(whole, most)
    for span in whole:
        mine = [window for window in chosen if window.partition == span.partition]
        assert mine[0].first == span.first
        assert mine[-1].after == span.after
        assert all(before.after <= after.first for before, after in pairwise(mine))
    assert sum(window.size for window in chosen) <= max(most, WINDOWS * LEAST_WINDOW * len(whole))


@given(ranges)
def test_a_short_history_is_taken_whole(whole: list[Window]) -> None:
    assert choose_windows(whole, sum(window.size for window in whole)) == whole


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 100)), st.dictionaries(st.integers(0, 9), st.integers(0, 100)))
def test_ranges_are_those_between_two_positions(start: dict[int, int], more: dict[int, int]) -> None:
    end = {partition: start.get(partition, 0) + count for partition, count in more.items()}
    found = list_ranges("t", {"t": start}, {"t": end, "other": {0: 7}})
    assert {window.partition: (window.first, window.after) for window in found} == {
        partition: (start.get(partition, 0), after) for partition, after in end.items()
    }


places = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=40)
windows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 10)), max_size=4).map(
    lambda spans: [Window(partition, first, first + size) for partition, first, size in spans]
)


@given(windows, places)
def test_each_place_of_a_window_has_an_event_or_has_none(within: list[Window], events: set[tuple[int, int]]) -> None:
    partitions, offsets = zip(*sorted(events), strict=True) if events else ((), ())
    table = pa.table([pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())], names=PLACE)
    found = [{tuple(row.values()) for row in part.to_pylist()} for part in split_places(within, table)]
    all_places = {(span.partition, offset) for span in within for offset in range(span.first, span.after)}
    assert found == [all_places & events, all_places - events]


@given(st.lists(st.integers(1, 10**7), max_size=200), st.integers(1, 10**6), st.integers(0, 9))
def test_chosen_events_make_no_more_rows_than_wanted_unless_one_alone_does(
    rows: list[int], most: int, seed: int
) -> None:
    chosen = choose_events(rows, most, seed)
    made = sum(rows[place] for place in chosen)
    assert chosen == sorted(set(chosen))
    assert bool(chosen) is bool(rows)
    assert made <= most or (len(chosen) == 1 and made == min(rows))
    left = [count for place, count in enumerate(rows) if place not in chosen]
    assert made > most or all(made + count > most for count in left), "another one would have fitted"


def test_events_with_few_and_with_many_rows_are_chosen() -> None:
    rows = [1] * 500 + [100] * 500
    chosen = choose_events(rows, 5_000)
    assert {rows[place] for place in chosen} == {1, 100}
    assert chosen == choose_events(rows, 5_000), "the same sample each time"
