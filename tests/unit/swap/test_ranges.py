"""The range of a backfill: what is taken, what is refused and why."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import InputError
from switchyard.offsets import count_records
from switchyard.swap.ranges import Edge, TopicBounds, check_held, check_order, parse_edge, resolve_range
from tests.specs import TARGET

BOUNDS: TopicBounds = {"users": ({0: 5, 1: 0}, {0: 20, 1: 10}), "accounts": ({0: 0}, {0: 7})}


def resolve(start: str | None, end: str | None) -> tuple[object, object]:
    return resolve_range(TARGET, parse_edge("from", start), parse_edge("to", end), BOUNDS, {})


@pytest.mark.parametrize("text", [None, "", "  ", "earliest", " Earliest "])
def test_without_an_edge_all_there_is_is_read(text: str | None) -> None:
    assert parse_edge("from", text) == Edge("earliest")
    assert resolve(text, "latest") == (
        {"users": {0: 5, 1: 0}, "accounts": {0: 0}},
        {"users": {0: 20, 1: 10}, "accounts": {0: 7}},
    )


def test_a_moment_without_a_zone_is_utc() -> None:
    assert parse_edge("to", "2026-01-31T12:00:00").moment == datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_offsets_leave_other_partitions_as_they_are() -> None:
    assert resolve('{"users": {"0": 7}}', '{"users": {"0": 9, "1": 0}, "accounts": {"0": 3}}') == (
        {"users": {0: 7, 1: 0}, "accounts": {0: 0}},
        {"users": {0: 9, 1: 0}, "accounts": {0: 3}},
    )


def test_moments_are_looked_up_by_the_broker() -> None:
    start, end = parse_edge("from", "2026-01-01"), parse_edge("to", "2026-01-02")
    at_moment = {
        "from": {"users": {0: 6, 1: 1}, "accounts": {0: 2}},
        "to": {"users": {0: 20, 1: 4}, "accounts": {0: 2}},
    }
    assert resolve_range(TARGET, start, end, BOUNDS, at_moment) == (at_moment["from"], at_moment["to"])


@pytest.mark.parametrize(
    ("side", "text", "reason"),
    [
        ("from", "latest", "is none of earliest"),
        ("to", "earliest", "is none of latest"),
        ("from", "yesterday", "is none of earliest, an ISO timestamp"),
        ("to", "1969-12-31", "from 1970 on"),
        ("from", "{nonsense", "from is not JSON"),
        ("to", "{}", "to names no topic"),
        ("to", '{"users": 3}', "must name the partitions of users"),
        ("to", '{"users": {}}', "must name the partitions of users"),
        ("from", '{"users": {"x": 3}}', "'x' is no partition of users"),
        ("from", '{"users": {"-1": 3}}', "'-1' is no partition of users"),
        ("from", '{"users": {"0": -1}}', "must be a whole number from 0 on"),
        ("from", '{"users": {"0": true}}', "must be a whole number from 0 on"),
        ("from", '{"users": {"0": 1.5}}', "must be a whole number from 0 on"),
        ("from", '{"users": {"0": 9223372036854775808}}', "must be a whole number from 0 on"),
        ("from", "x" * 20_001, "at most 20000 are allowed"),
    ],
)
def test_what_is_no_edge_is_refused_with_the_reason(side: str, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_edge(side, text)


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        ('{"people": {"0": 1}}', None, "from names the topic people, but users and accounts are joined"),
        (None, '{"users": {"2": 1}}', "users has no partition 2; it has 2"),
        ('{"users": {"0": 4}}', None, "no longer holds offset 4 of partition 0 of users, its first one is 5"),
        (None, '{"users": {"0": 21}}', "partition 0 of users ends at offset 20, and 21 was asked for"),
        ('{"accounts": {"0": 5}}', '{"accounts": {"0": 4}}', "begins at offset 5, after its end 4"),
    ],
)
def test_a_range_that_cannot_be_read_is_refused_with_the_reason(
    start: str | None, end: str | None, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        resolve(start, end)


def test_moments_must_be_in_order() -> None:
    early, late = "2026-01-01T00:00:00Z", "2026-01-01T02:00:00+01:00"
    check_order(parse_edge("from", early), parse_edge("to", late))
    for start, end in ((late, early), (early, early)):
        with pytest.raises(InputError, match="is not before"):
            check_order(parse_edge("from", start), parse_edge("to", end))


def test_what_kafka_has_deleted_meanwhile_is_noticed() -> None:
    check_held({"users": {0: 5, 1: 0}}, BOUNDS)
    with pytest.raises(InputError, match="no longer holds offset 4 of partition 0 of users"):
        check_held({"users": {0: 4}}, BOUNDS)


PARTITIONS = st.integers(1, 4).flatmap(
    lambda count: st.fixed_dictionaries({p: st.tuples(*[st.integers(0, 50)] * 4).map(sorted) for p in range(count)})
)


@given(users=PARTITIONS, accounts=PARTITIONS)
def test_any_range_within_the_bounds_is_taken_as_it_is(
    users: dict[int, list[int]], accounts: dict[int, list[int]]
) -> None:
    topics = {"users": users, "accounts": accounts}
    bounds = {
        topic: ({p: four[0] for p, four in parts.items()}, {p: four[3] for p, four in parts.items()})
        for topic, parts in topics.items()
    }
    wanted = [{topic: {p: four[nth] for p, four in parts.items()} for topic, parts in topics.items()} for nth in (1, 2)]
    edges = [parse_edge(side, json.dumps(offsets)) for side, offsets in zip(("from", "to"), wanted, strict=True)]
    found = resolve_range(TARGET, *edges, bounds, {})
    assert list(found) == wanted
    assert count_records(*found) >= 0
