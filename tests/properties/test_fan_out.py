"""The pairs of an event: the average is exact over restarts, and growth is told when it is there and only then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.swap.fan_out import LEAST_PAIRS, FanOut, warn_of_growth

BATCHES = st.lists(st.tuples(st.integers(0, 500_000), st.integers(0, 10**7)), max_size=30)


@given(BATCHES, st.integers(0, 30))
def test_the_average_is_that_of_all_batches_also_over_a_restart(batches: list[tuple[int, int]], cut: int) -> None:
    first = FanOut()
    for batch in batches[:cut]:
        first.add(*batch)
    second = FanOut(sum(records for records, _ in batches[:cut]), first.average)
    for batch in batches[cut:]:
        second.add(*batch)
    records = sum(records for records, _ in batches)
    # A batch without records has no pairs either; Spark makes none.
    if records and all(number for number, _ in batches):
        assert second.average == pytest.approx(sum(pairs for _, pairs in batches) / records)


@given(BATCHES.filter(lambda batches: any(records for records, _ in batches)))
def test_what_is_recent_lies_between_the_least_and_the_most_of_a_batch(batches: list[tuple[int, int]]) -> None:
    fan_out = FanOut()
    for records, pairs in batches:
        fan_out.add(records, pairs if records else 0)
    shares = [pairs / records for records, pairs in batches if records]
    assert fan_out.recent is not None
    assert min(shares) - 1e-6 <= fan_out.recent <= max(shares) * (1 + 1e-9) + 1e-6


def run(people: int, records: int, batch: int) -> FanOut:
    """A fixed set of people with events on either side alternately: each event meets all others of its person."""
    fan_out, seen = FanOut(), 0
    while seen < records:
        fan_out.add(batch, round(batch * (seen + batch / 2) / (2 * people)))
        seen += batch
    return fan_out


@given(st.integers(1, 2_000), st.integers(50, 5_000))
def test_a_fixed_set_of_people_is_told_once_it_makes_many_rows(people: int, batch: int) -> None:
    fan_out = run(people, 400_000, batch)
    assert fan_out.recent is not None
    assert fan_out.recent >= LEAST_PAIRS
    warning = warn_of_growth(fan_out.average, fan_out.recent)
    assert warning is not None
    assert "SWITCHYARD_STATE_RETENTION" in warning


@given(st.floats(0, 10**6), st.lists(st.integers(1, 500_000), min_size=1, max_size=30))
def test_the_same_number_of_rows_for_each_event_is_never_told(share: float, batches: list[int]) -> None:
    fan_out = FanOut()
    for records in batches:
        fan_out.add(records, round(records * share))
    # Rounding makes the small shares uneven; where there are that few nothing is told.
    assert warn_of_growth(fan_out.average, fan_out.recent) is None


def test_a_generation_whose_pairs_were_not_counted_from_the_start_tells_nothing() -> None:
    fan_out = FanOut(1_000, None)
    fan_out.add(10, 10_000)
    assert (fan_out.average, fan_out.recent) == (None, 1_000.0)
    assert warn_of_growth(fan_out.average, fan_out.recent) is None
