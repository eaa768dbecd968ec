"""The stable names: they always mean the active generation, or the whole of a small table."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.tables import store
from switchyard.tables.commits import files_since, list_data_files, oldest_needed
from switchyard.tables.progress import newest_progress
from switchyard.tables.schemas import TIMESTAMP
from switchyard.tables.status import read_status

ACTIVE_NAMES = {
    "users_ui": "users",
    "accounts_ui": "accounts",
    "final_ui": "joined",
    "rejects_ui": "rejects",
}
WHOLE_NAMES = {
    "orchestrator_status": "status",
    "orchestrator_logs": "logs",
    "control_raw": "control_raw",
    "swap_history": "swap_history",
    "progress": "progress",
    "audits": "audits",
    "incidents": "incidents",
    "forgotten": "forgotten",
}
NEWEST_BY = {
    "users": ("ts",),
    "accounts": ("ts",),
    "joined": ("userTs", "accountTs"),
    "rejects": ("ts",),
    "status": ("lastApplied",),
    "logs": ("ts",),
    "control_raw": ("ts",),
    "swap_history": ("at",),
    "progress": ("at",),
    "audits": ("at",),
    "incidents": ("at",),
    "forgotten": ("at",),
}


def resolve_name(name: str) -> str:
    """The table behind a stable name."""
    table = ACTIVE_NAMES.get(name) or WHOLE_NAMES.get(name)
    if table is None:
        known = ", ".join([*ACTIVE_NAMES, *WHOLE_NAMES])
        raise InputError(f"there is no table named {name!r}; the stable names are {known}")
    return table


def open_stable(layout: Layout, name: str) -> tuple[DeltaTable, int | None] | None:
    """The table behind a stable name at the version to read, and the generation to read; None before there is one."""
    table = resolve_name(name)
    if name in WHOLE_NAMES:
        return (store.open_table(layout, table), None) if store.has_table(layout, table) else None
    status = read_status(layout)
    progress = newest_progress(layout, status.generation) if status else None
    if progress is None:
        return None
    return store.open_table(layout, table, progress.version_of(table)), progress.generation


def newest_rows(layout: Layout, name: str, limit: int) -> list[store.Row]:
    """The last rows of a stable name, newest last. Reads the newest files only, by their statistics."""
    table = resolve_name(name)
    found = open_stable(layout, name)
    if found is None or limit <= 0:
        return []
    stamps = NEWEST_BY[table]
    live = [file for file in list_data_files(found[0]).values() if file.generation == found[1] or found[1] is None]
    oldest = oldest_needed(live, stamps, limit)
    since = None if oldest is None else pa.scalar(oldest, TIMESTAMP)
    where = None if since is None else reduce(or_, [pc.field(stamp) >= since for stamp in stamps])
    needed = {file.path: file.generation for file in files_since(live, stamps, oldest)}
    rows = store.read_files(found[0], table, needed, where)
    arrived = pc.max_element_wise(*[rows[stamp].cast(pa.int64()) for stamp in stamps])
    order = pc.sort_indices(arrived)
    return list(rows.take(order[max(0, rows.num_rows - limit) :]).to_pylist())
