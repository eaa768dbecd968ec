"""Positions of a micro-batch out of Spark's offset log."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.errors import SwitchyardError
from switchyard.offsets import count_records, from_json, furthest, has_reached, to_json
from switchyard.stream.offset_log import parse_offset_log, read_batch_end

LOG = 'v1\n{"batchWatermarkMs":0}\n{"users":{"1":5,"0":7}}\n{"accounts":{"0":3}}'


def test_log_gives_the_end_of_each_topic() -> None:
    assert parse_offset_log(LOG, ["users", "accounts"]) == {"users": {0: 7, 1: 5}, "accounts": {0: 3}}


def test_missing_offsets_name_the_batch(tmp_path: Path) -> None:
    with pytest.raises(SwitchyardError, match="no offsets of batch 4"):
        read_batch_end(str(tmp_path), 4, ["users"])


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
