"""Positions of a micro-batch, read from Spark's own offset log: written before a batch runs, the same on a replay."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from switchyard.errors import SwitchyardError
from switchyard.offsets import Offsets
from switchyard.tables.folders import Folder

_NO_OFFSET = "-"
"""Spark's line for a source that has not been read yet."""
ADVICE = "roll back, or swap to another join type and back with start earliest"
"""For a generation that cannot go on where it was."""


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


def read_batch_end(checkpoint: str, batch_id: int, topics: Collection[str]) -> Offsets:
    try:
        text = Folder.at(checkpoint).read_bytes(f"offsets/{batch_id}").decode()
        found = parse_offset_log(text, topics)
        is_whole = set(found) == set(topics) or _NO_OFFSET in text.splitlines()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        is_whole = False
    if not is_whole:
        raise SwitchyardError(
            f"the checkpoint is damaged: where batch {batch_id} ends is not there or not whole; {ADVICE}"
        )
    return found
