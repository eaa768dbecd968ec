"""The id of an installation, kept in its root: the one that Delta gave to a table when it was created."""

from __future__ import annotations

from functools import lru_cache

from switchyard.layout import Layout
from switchyard.tables import store


@lru_cache
def installation_id(layout: Layout) -> str:
    """Each root has another id, and every process that uses the root gets the same one."""
    return str(store.open_table(layout, "control_raw").metadata().id).replace("-", "")[:16]
