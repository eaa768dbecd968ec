"""Count and compare positions in topics, and turn them into the JSON that `progress` keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

Offsets = dict[str, dict[int, int]]
"""topic → partition → offset"""


@dataclass(frozen=True)
class Gap:
    """Offsets of one partition from `first` to just before `end`."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first


def count_records(start: Offsets, end: Offsets) -> int:
    """Count the offsets between two positions; a new partition begins at 0."""
    return sum(
        offset - start.get(topic, {}).get(partition, 0)
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def has_reached(position: Offsets, goal: Offsets) -> bool:
    return all(
        position.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in goal.items()
        for partition, offset in partitions.items()
    )


def furthest(positions: Iterable[Offsets]) -> Offsets:
    """Return, for each partition, the greatest of its offsets."""
    merged: Offsets = {}
    for position in positions:
        for topic, partitions in position.items():
            there = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                there[partition] = max(offset, there.get(partition, 0))
    return merged


def describe_missing(position: Offsets, firsts: Offsets) -> str:
    """Name the records after a position that are gone, because the topics begin later (`firsts`); empty if none is."""
    gone = [
        f"{topic}, partition {partition}, offsets {position[topic].get(partition, 0)} to {first - 1}"
        for topic, partitions in firsts.items()
        for partition, first in partitions.items()
        if first > position.get(topic, {}).get(partition, 0)
    ]
    return "; ".join(gone)


def from_json(text: str | None) -> Offsets:
    parsed = json.loads(text or "{}")
    return {topic: {int(p): offset for p, offset in partitions.items()} for topic, partitions in parsed.items()}


def to_json(offsets: Offsets) -> str:
    return json.dumps(offsets, sort_keys=True)
