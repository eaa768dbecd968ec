"""Read where a micro-batch ends from Spark's offset log, which is written before the batch runs and never changed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from switchyard.errors import SwitchyardError
from switchyard.offsets import Offsets
from switchyard.tables.folders import Folder

_NO_OFFSET = "-"
"""Spark's line for a source that has not been read yet."""
ADVICE = "roll back, or swap to another join type and back with start earliest"
"""What to do with a generation that cannot go on from its checkpoint"""


def parse_offset_log(text: str, topics: Iterable[str]) -> Offsets:
    """Return the end of a batch. Its file has a version, the metadata, and one line for each source."""
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
