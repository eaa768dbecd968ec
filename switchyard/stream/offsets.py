"""Positions of a micro-batch, read from Spark's own offset log: written before a batch runs, the same on a replay."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow.fs as pafs

from switchyard.errors import SwitchyardError
from switchyard.kafka.topics import Offsets


def parse_offset_log(text: str, topics: Iterable[str]) -> Offsets:
    """The end of a batch, from the lines of its file: a version, the metadata, one line for each source."""
    wanted, found = set(topics), {}
    for line in text.splitlines()[2:]:
        if not line.startswith("{"):
            continue
        for topic, partitions in json.loads(line).items():
            if topic in wanted:
                found[topic] = {int(partition): int(offset) for partition, offset in partitions.items()}
    return found


def read_batch_end(checkpoint: str, batch_id: int, topics: Iterable[str]) -> Offsets:
    uri = f"{checkpoint}/offsets/{batch_id}"
    filesystem, path = pafs.FileSystem.from_uri(uri) if "://" in uri else (pafs.LocalFileSystem(), uri)
    try:
        with filesystem.open_input_stream(path) as source:
            text = source.read().decode()
    except FileNotFoundError:
        raise SwitchyardError(f"the checkpoint has no offsets of batch {batch_id}; is it damaged?") from None
    return parse_offset_log(text, topics)


def count_records(start: Offsets, end: Offsets) -> int:
    """How many offsets lie between two positions; a partition that is new begins at 0."""
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


def from_json(text: str | None) -> Offsets:
    parsed = json.loads(text or "{}")
    return {topic: {int(p): offset for p, offset in partitions.items()} for topic, partitions in parsed.items()}


def to_json(offsets: Offsets) -> str:
    return json.dumps(offsets, sort_keys=True)
