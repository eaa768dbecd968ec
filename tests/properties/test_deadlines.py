"""The deadline of a swap fits its records, whatever their number and whatever was measured."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.swap.control_message import MOST_DEADLINE_SECONDS, parse_message
from switchyard.swap.history import Ledger
from switchyard.swap.planning import (
    CAUTIOUS_RECORDS_PER_SECOND,
    allow_seconds,
    compute_deadline,
    count_to_read,
    describe_deadline,
    estimate_reading,
)
from switchyard.tables.progress import BIG_BATCH_ROWS, Progress, bulk_rate, report
from switchyard.upkeep.small_tables import shorten_progress

SECONDS = st.floats(0, 1e300)
RECORDS = st.integers(0, 2**63)
PLACES = st.dictionaries(st.integers(0, 2), st.integers(0, 100))
FRESH = Settings(root="/nothing/is/here")
YEAR_9000 = datetime(9000, 1, 1, tzinfo=UTC)
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))


@given(st.floats(0.001, MOST_DEADLINE_SECONDS), SECONDS, SECONDS)
def test_a_deadline_is_never_below_the_base_grows_with_the_records_and_can_be_written(
    base: float, less: float, more: float
) -> None:
    less, more = sorted((less, more))
    assert base <= compute_deadline(base, less) <= compute_deadline(base, more) <= MOST_DEADLINE_SECONDS
    assert YEAR_9000 + timedelta(seconds=compute_deadline(base, more)) > YEAR_9000
    assert compute_deadline(base, 0) == base


@given(st.floats(1, 1e6), st.floats(0, 1e6))
def test_a_deadline_allows_three_times_the_estimate(base: float, reading: float) -> None:
    assert compute_deadline(base, reading) == base + 3 * reading


@given(PLACES, PLACES)
@example({0: 7}, {0: 5})
def test_a_start_past_the_ends_takes_nothing_from_the_deadline(starts: dict[int, int], ends: dict[int, int]) -> None:
    """Records may arrive between the two questions to the broker: where the topics end, and where a moment lies."""
    records = count_to_read({"users": starts}, {"users": ends})
    assert records >= 0
    assert allow_seconds(FRESH, Ledger(), records) >= FRESH.ready_deadline_seconds


@given(RECORDS, st.one_of(st.none(), st.floats(0.001, MOST_DEADLINE_SECONDS)))
@example(2_000_000, None)
@example(2**63, None)
def test_a_given_deadline_replaces_the_computed_one(records: int, asked: float | None) -> None:
    computed = compute_deadline(FRESH.ready_deadline_seconds, records / CAUTIOUS_RECORDS_PER_SECOND)
    seconds = allow_seconds(FRESH, Ledger(), records, given=asked)
    assert seconds == (computed if asked is None else asked)
    words = describe_deadline(seconds, FRESH.ready_deadline_seconds, records, asked)
    assert bool(words) == (asked is not None or seconds >= FRESH.ready_deadline_seconds + 1)


def test_the_words_of_a_long_deadline() -> None:
    assert describe_deadline(840.0, 120.0, 2_000_000, None) == "; its deadline is in 14 min: 2,000,000 records to read"
    assert describe_deadline(90.0, 120.0, 2_000_000, 90.0) == "; its deadline is in 90 s: as the message asks"
    assert describe_deadline(120.02, 120.0, 40, None) == ""


@given(st.one_of(NUMBERS, st.booleans(), st.text(max_size=5), st.lists(NUMBERS, max_size=1)))
def test_a_message_has_a_deadline_that_can_be_written_or_is_refused(value: object) -> None:
    value_json = json.dumps({"deadlineSeconds": value}).encode()
    if isinstance(value, int | float) and value is not True and 0 < value <= MOST_DEADLINE_SECONDS:
        assert parse_message(value_json).deadlineSeconds == value
        assert YEAR_9000 + timedelta(seconds=value) >= YEAR_9000
    else:
        with pytest.raises(InputError, match=r"^deadlineSeconds must be a number above 0"):
            parse_message(value_json)


def batch(number: int, rows: int, batch_ms: int) -> Progress:
    rate = rows * 1000 / batch_ms
    return Progress(1, 1, number, YEAR_9000, rows, rate, batch_ms, 0, 1, 1, 1, 1, 0, 0, "{}", "{}")


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 3, 40, 4_999, 5_000, 70_000]), st.integers(1, 90_000)), max_size=5))
@example([(40, 1), (3, 1)])
def test_only_big_batches_say_how_fast_a_history_is_read(batches: list[tuple[int, int]]) -> None:
    """On a quiet stream the fastest of many small batches is far from what a big one does."""
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        for number, (rows, batch_ms) in enumerate(batches):
            report(layout, batch(number, rows, batch_ms))
        rates = [rows * 1000 / batch_ms for rows, batch_ms in batches if rows >= BIG_BATCH_ROWS]
        assert bulk_rate(layout) == (median(rates) if rates else None)
        reading = estimate_reading(Settings(root=root), Ledger(), 1_000_000)
        assert reading == 1_000_000 / max(median(rates) if rates else CAUTIOUS_RECORDS_PER_SECOND, 1.0)


def test_batches_that_maintenance_has_merged_say_nothing(layout: Layout) -> None:
    for number in range(3):
        report(layout, batch(number, 4_000, 100))
    report(layout, batch(3, 9_000, 3_000))
    assert bulk_rate(layout) == 3_000.0
    shorten_progress(layout, 1, YEAR_9000 + timedelta(days=1))
    assert bulk_rate(layout) is None
