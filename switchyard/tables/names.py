"""The stable names: they always mean the active generation, or the whole of a small table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.tables import store
from switchyard.tables.progress import newest_progress
from switchyard.tables.schemas import SCHEMAS
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
}
_NEWEST_BY = {
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
}


def resolve_name(name: str) -> str:
    """The table behind a stable name."""
    table = ACTIVE_NAMES.get(name) or WHOLE_NAMES.get(name)
    if table is None:
        known = ", ".join([*ACTIVE_NAMES, *WHOLE_NAMES])
        raise InputError(f"there is no table named {name!r}; the stable names are {known}")
    return table


def read_stable(layout: Layout, name: str) -> pa.Table:
    """All rows that a stable name means now, at versions that belong together."""
    table = resolve_name(name)
    if name in WHOLE_NAMES:
        return store.read_arrow(layout, table)
    status = read_status(layout)
    progress = newest_progress(layout, status.generation) if status else None
    if progress is None:
        return SCHEMAS[table].empty_table()
    return store.read_arrow(
        layout, table, generation=progress.generation, version=progress.version_of(table)
    )


def newest_rows(layout: Layout, name: str, limit: int) -> list[store.Row]:
    """The last rows of a stable name, newest last."""
    rows = read_stable(layout, name)
    stamps = [rows[column].cast(pa.int64()) for column in _NEWEST_BY[resolve_name(name)]]
    order = pc.sort_indices(pc.max_element_wise(*stamps))
    return list(rows.take(order[max(0, rows.num_rows - limit) :]).to_pylist())
