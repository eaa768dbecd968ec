"""Positions in topics: counted, compared, written and read."""

from __future__ import annotations

import pytest

from switchyard.offsets import count_records, describe_missing, from_json, furthest, has_reached, to_json


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        ({"u": {0: 2}}, {"u": {0: 7}}, 5),
        ({"u": {0: 2}}, {"u": {0: 2}}, 0),
        ({"u": {0: 2}}, {"u": {0: 3, 1: 4}}, 5),
    ],
    ids=["some", "none", "a new partition begins at 0"],
)
def test_records_between_two_positions(
    start: dict[str, dict[int, int]], end: dict[str, dict[int, int]], count: int
) -> None:
    assert count_records(start, end) == count


def test_a_goal_is_reached_when_every_partition_is_there() -> None:
    goal = {"u": {0: 2, 1: 3}, "a": {0: 0}}
    assert has_reached({"u": {0: 2, 1: 9}}, goal)
    assert not has_reached({"u": {0: 2, 1: 2}}, goal)
    assert not has_reached({}, goal)


def test_offsets_survive_json() -> None:
    assert from_json(to_json({"u": {0: 2, 11: 3}})) == {"u": {0: 2, 11: 3}}


def test_the_furthest_position_counts() -> None:
    found = furthest([{"t": {0: 3, 1: 9}}, {"t": {0: 5}, "u": {0: 1}}, {}])
    assert found == {"t": {0: 5, 1: 9}, "u": {0: 1}}


def test_which_records_are_gone() -> None:
    firsts = {"users": {0: 7, 1: 3}, "accounts": {0: 0}}
    assert describe_missing({"users": {0: 7, 1: 3}, "accounts": {0: 0}}, firsts) == ""
    assert describe_missing({"users": {0: 4}}, firsts) == (
        "users, partition 0, offsets 4 to 6; users, partition 1, offsets 0 to 2"
    )
