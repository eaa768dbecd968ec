"""Positions of a micro-batch, read from Spark's own offset log: written before a batch runs, the same on a replay."""

from __future__ import annotations

import json
from collections.abc import Iterable

from switchyard.errors import SwitchyardError
from switchyard.offsets import Offsets
from switchyard.tables.files import Folder


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
    try:
        text = Folder.at(checkpoint).read_bytes(f"offsets/{batch_id}").decode()
    except FileNotFoundError:
        raise SwitchyardError(f"the checkpoint has no offsets of batch {batch_id}; is it damaged?") from None
    return parse_offset_log(text, topics)
