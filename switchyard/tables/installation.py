"""Read the id of an installation from its root: the id that Delta gave to a table when it was created."""

from __future__ import annotations

from functools import lru_cache

from switchyard.layout import Layout
from switchyard.tables import store


@lru_cache
def installation_id(layout: Layout) -> str:
    return str(store.open_table(layout, "control_raw").metadata().id).replace("-", "")[:16]
