"""Choose the files of a table that compaction merges, and commit the merged files in their place.

The commit is made only while every file that it removes is still live. Appends of other writers do not matter. If a
stream has replaced one of the files meanwhile, nothing is committed, and the caller looks again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from switchyard.layout import Layout
from switchyard.tables import files, store
from switchyard.tables.files import LiveFile

MOST_OVERLAPS = 4
"""A full file is sorted again if its span overlaps the spans of more files than this."""


def choose_files(live: Sequence[LiveFile], target_bytes: int, written_before: int) -> list[LiveFile]:
    """Return the files worth merging, in the order of their spans: small files, and full files that overlap others."""
    # The stream is most likely to replace the newest files itself.
    old_enough = [file for file in live if file.written <= written_before]
    small = [file for file in old_enough if file.size < target_bytes / 2]
    full = [file for file in old_enough if file.size >= target_bytes / 2 and not file.is_across_partitions]
    crowded = [file for file, count in zip(full, count_overlaps(full), strict=True) if count > MOST_OVERLAPS]
    chosen = crowded + (small if len(small) > 1 else [])
    return sorted(chosen, key=lambda file: (file.partitions, file.offsets, file.path)) if len(chosen) > 1 else []


def count_overlaps(live: Sequence[LiveFile]) -> list[int]:
    """Count for each file the other files whose spans overlap its span."""
    if not live:
        return []
    first, last = (np.array([file.partitions[end] for file in live]) for end in (0, 1))
    low, high = (np.array([file.offsets[end] for file in live]) for end in (0, 1))
    return [
        int(np.sum((first <= last[i]) & (last >= first[i]) & (low <= high[i]) & (high >= low[i]))) - 1
        for i in range(len(live))
    ]


def cut_into_groups(chosen: Sequence[LiveFile], most_bytes: int) -> list[list[LiveFile]]:
    """Group neighbouring files; a small group costs little when its commit loses a race."""
    groups: list[list[LiveFile]] = []
    size = 0
    for file in chosen:
        if not groups or size + file.size > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [group for group in groups if len(group) > 1]


def replace_files(
    layout: Layout,
    name: str,
    generation: int | None,
    gone: Sequence[LiveFile],
    added: Sequence[AddAction],
    data_change: bool = False,
) -> bool:
    """Replace files by others in one commit; commit nothing and return False if one of them is gone."""
    removed = [files.remove_file(generation, file.path, file.size, data_change) for file in gone]

    def replace_if_live(table: DeltaTable) -> store.Change | None:
        is_live = {file.path for file in gone} <= set(store.list_paths(table))
        return store.Change(added=added, removed=removed) if is_live else None

    return store.transact(layout, name, replace_if_live) is not None
