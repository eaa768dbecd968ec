"""Merge the small files of a generation while it streams, so that a reader never has to open those of a whole day.

It works like the levels of a log-structured merge tree: FAN_IN files of about one size become one of the next size,
until they are large enough for maintenance. A row is written again once for each level, so the cost of a batch does not
grow with time, and the number of live files grows with the logarithm of the batches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa
from deltalake import DeltaTable

from switchyard.layout import Layout
from switchyard.tables import files
from switchyard.tables.compaction import replace_files
from switchyard.tables.files import LiveFile, list_files
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import gather, scan_files
from switchyard.tables.schemas import FILE_SCHEMAS

FAN_IN = 32
SMALLEST_BYTES = 128 * 1024
"""Smaller files are all of one level: that of a single batch."""
MOST_ROWS = 2**22
MOST_BYTES = 192 * 2**20
"""What is sorted in memory at once."""


def level_of(size: int) -> int:
    return 0 if size < SMALLEST_BYTES else 1 + int(math.log(size / SMALLEST_BYTES, FAN_IN))


def choose_merges(live: Sequence[LiveFile], most_bytes: int) -> list[list[LiveFile]]:
    """Return groups of files that become one each, the oldest first. Files of unmatched rows stay apart."""
    levels: dict[tuple[bool, int], list[LiveFile]] = defaultdict(list)
    for file in sorted(live, key=lambda file: (file.written, file.path)):
        if file.size < most_bytes / 2:
            levels[file.unmatched_rows > 0, level_of(file.size)].append(file)
    return [group for level in levels.values() for group in _split(level, most_bytes)]


def _split(level: Sequence[LiveFile], most_bytes: int) -> Iterator[list[LiveFile]]:
    """Take groups while there are enough files, or enough bytes: large files need no FAN_IN of them."""
    while len(level) >= FAN_IN or sum(file.size for file in level) >= most_bytes:
        taken = _take_oldest(level, most_bytes)
        yield taken
        level = level[len(taken) :]


def _take_oldest(level: Sequence[LiveFile], most_bytes: int) -> list[LiveFile]:
    """Take the files that fit into one of `most_bytes`: two at least, as each is smaller than half of it."""
    taken: list[LiveFile] = []
    size = 0
    for file in level:
        if taken and size + file.size > most_bytes:
            break
        taken.append(file)
        size += file.size
    return taken


def merge_small(
    layout: Layout, table: DeltaTable, name: str, generation: int, key: Sequence[str], most_bytes: int
) -> int:
    """Merge what is due in an open table; return how many files were merged into others."""
    merged = 0
    for group in choose_merges(list_files(table, generation), most_bytes):
        folder = Folder.at(layout.table(name))
        added = [files.write_file(folder, generation, rows, False) for rows in _read(folder, name, group, key)]
        if replace_files(layout, name, generation, group, added):
            merged += len(group)
        else:
            # Another writer has replaced a file of the group; the others are chosen again later.
            for file in added:
                folder.delete_file(file.path)
    return merged


def _read(folder: Folder, name: str, group: Sequence[LiveFile], key: Sequence[str]) -> Iterator[pa.Table]:
    """Read the rows of a group, sorted; in several parts only if they are far larger in memory than on disk."""
    pieces = scan_files(folder, {file.path: file.rows for file in group}, FILE_SCHEMAS[name])
    for rows in gather(pieces, MOST_ROWS, MOST_BYTES):
        yield rows.sort_by([(column, "ascending") for column in key])
