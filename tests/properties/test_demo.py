"""The demo's generator: for any seed and length, rows of every join grow with the events and no person comes back."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.kafka.demo import CURRENT_PEOPLE, LIVES, DemoRecord, draw_records
from switchyard.layout import JOIN_TYPES
from switchyard.records import LEFT
from tests.model import Event, join

MOST_ROWS_PER_EVENT = 1.5
SEEDS = st.integers(0, 2**32)
LENGTHS = st.integers(0, 5_000)


def draw_some(seed: int, length: int, first: int = 0) -> list[DemoRecord]:
    return list(islice(draw_records(random.Random(seed), first), length))


def lives_of(records: list[DemoRecord]) -> dict[str, str]:
    """The kinds of events that each person has had, in order of arrival."""
    lives: dict[str, str] = defaultdict(str)
    for record in records:
        lives[str(record.fields["userId"])] += "U" if record.side == LEFT else "A"
    return lives


def count_rows(life: str) -> dict[str, int]:
    """The rows that each join makes of one person."""
    users, accounts = life.count("U"), life.count("A")
    return {"left": users * max(accounts, 1), "inner": users * accounts, "natural": users, "asof": accounts}


def sum_rows(records: list[DemoRecord]) -> Counter[str]:
    total = Counter(dict.fromkeys(JOIN_TYPES, 0))
    for life in lives_of(records).values():
        total.update(count_rows(life))
    return total


def as_events(records: list[DemoRecord]) -> list[Event]:
    return [
        Event("user" if record.side == LEFT else "account", str(record.fields["userId"]), number, 0, number)
        for number, record in enumerate(records)
    ]


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(0, 700))
def test_rows_are_counted_as_the_joins_make_them(seed: int, length: int) -> None:
    records = draw_some(seed, length)
    events = as_events(records)
    users, accounts = ([event for event in events if event.side == side] for side in ("user", "account"))
    assert sum_rows(records) == {kind: len(join(kind, users, accounts)) for kind in JOIN_TYPES}


@settings(max_examples=40, deadline=None)
@given(SEEDS, LENGTHS)
def test_rows_of_every_join_grow_with_the_events(seed: int, length: int) -> None:
    rows = sum_rows(draw_some(seed, length))
    assert length - CURRENT_PEOPLE <= rows["left"] <= MOST_ROWS_PER_EVENT * length
    assert rows["inner"] <= rows["left"]
    assert rows["natural"] + rows["asof"] == length


@pytest.mark.parametrize("life", LIVES)
def test_a_life_keeps_the_bounds_at_every_event_so_that_any_number_of_lives_does(life: str) -> None:
    for events in range(1, len(life) + 1):
        assert events - 1 <= count_rows(life[:events])["left"] <= MOST_ROWS_PER_EVENT * events
    assert count_rows(life)["left"] >= len(life)


@settings(max_examples=40, deadline=None)
@given(SEEDS, LENGTHS, st.integers(0, 10**9))
def test_people_have_one_life_each_and_few_are_current(seed: int, length: int, first: int) -> None:
    lives = lives_of(draw_some(seed, length, first))
    assert list(lives) == [f"user-{first + number}" for number in range(len(lives))]
    assert len(lives) <= length
    assert all(any(whole.startswith(life) for whole in LIVES) for life in lives.values())
    assert sum(life not in LIVES for life in lives.values()) <= CURRENT_PEOPLE


@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_a_seed_makes_the_same_records_again(seed: int) -> None:
    assert draw_some(seed, 1_000) == draw_some(seed, 1_000)


def test_some_have_no_account_some_a_late_one_and_some_an_early_one_and_users_change() -> None:
    records = draw_some(1, 20_000)
    lives = set(lives_of(records).values())
    assert set(LIVES) <= lives
    assert {"U", "UUAA", "AUUA"} <= set(LIVES)
    versions: dict[object, set[tuple[object, ...]]] = defaultdict(set)
    for record in records:
        if record.side == LEFT:
            versions[record.fields["userId"]].add(tuple(record.fields.values()))
    for field in (1, 2, 3):
        assert any(len({version[field] for version in those}) > 1 for those in versions.values())
