"""Resolve the stable names: they always mean the active generation, or the whole of a small table."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from deltalake import DeltaTable

from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.records import SIDES
from switchyard.tables import store
from switchyard.tables.commits import files_since, list_data_files, oldest_needed
from switchyard.tables.folders import Folder
from switchyard.tables.newest_rows import read_newest
from switchyard.tables.progress import newest_progress
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.status import read_status

ACTIVE_NAMES = {
    **{f"{side.plural}_ui": side.plural for side in SIDES},
    "final_ui": "joined",
    "rejects_ui": "rejects",
}
WHOLE_NAMES = {
    "orchestrator_status": "status",
    "orchestrator_logs": "logs",
    **{name: name for name in ("control_raw", "swap_history", "progress", "audits", "incidents", "forgotten")},
}
NEWEST_BY = {
    **{side.plural: ("ts",) for side in SIDES},
    "joined": tuple(side.ts for side in SIDES),
    "status": ("lastApplied",),
    **dict.fromkeys(("rejects", "logs", "control_raw"), ("ts",)),
    **dict.fromkeys(("swap_history", "progress", "audits", "incidents", "forgotten"), ("at",)),
}
"""The times that say when a row arrived: the latest of them counts."""
MOST_ROWS = 100_000
MOST_BYTES = 16 * 2**20
"""The most that `tail` shows."""


def resolve_name(name: str) -> str:
    table = ACTIVE_NAMES.get(name) or WHOLE_NAMES.get(name)
    if table is None:
        known = ", ".join([*ACTIVE_NAMES, *WHOLE_NAMES])
        raise InputError(f"there is no table named {name!r}; the stable names are {known}")
    return table


def open_stable(layout: Layout, name: str) -> tuple[DeltaTable, int | None] | None:
    """Open the table behind a stable name at the version to read; return it with the generation to read.

    None before there is one.
    """
    table = resolve_name(name)
    if name in WHOLE_NAMES:
        return (store.open_table(layout, table), None) if store.has_table(layout, table) else None
    status = read_status(layout)
    progress = newest_progress(layout, status.generation) if status else None
    if progress is None:
        return None
    return store.open_table(layout, table, progress.version_of(table)), progress.generation


def newest_rows(
    layout: Layout, name: str, limit: int, say: Callable[[str], None] = lambda line: None
) -> list[store.Row]:
    """Return the last rows of a stable name, newest last; `say` is told if some are left out for their length."""
    if limit > MOST_ROWS:
        raise InputError(f"{limit} rows are more than fit at once: ask for {MOST_ROWS} at most, or read the table")
    rows, left_out = newest_table(layout, name, limit, MOST_BYTES)
    if left_out:
        say(
            f"only the newest {rows.num_rows} rows: with {left_out} more they are over {MOST_BYTES // 2**20} MiB; "
            "read the table to see all"
        )
    return list(rows.to_pylist())


def newest_table(layout: Layout, name: str, limit: int, most_bytes: int | None) -> tuple[pa.Table, int]:
    """Return the last rows as Arrow, and how many do not fit; statistics tell which files to read."""
    table = resolve_name(name)
    found = open_stable(layout, name)
    if found is None or limit <= 0:
        return SCHEMAS[table].empty_table(), 0
    stamps = NEWEST_BY[table]
    live = [file for file in list_data_files(found[0]).values() if file.generation == found[1] or found[1] is None]
    needed = files_since(live, stamps, oldest_needed(live, stamps, limit))
    return read_newest(Folder.at(found[0].table_uri), table, needed, stamps, limit, most_bytes)
