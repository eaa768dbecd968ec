"""Remove what a generation has written, with one commit for each table. Vacuum deletes the files later."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from switchyard.layout import BIG_TABLES, Layout, batch_app_id
from switchyard.tables import files, store
from switchyard.tables.folders import Folder


def remove_generation_rows(layout: Layout, generation: int) -> int:
    """Remove all rows of a generation from the big tables; return how many files held them."""
    return sum(_remove_from(layout, name, generation) for name in BIG_TABLES if store.has_table(layout, name))


def delete_uncommitted(layout: Layout, generation: int) -> None:
    """Delete the files of a generation in tables to which it has never committed."""
    for name in BIG_TABLES:
        if store.has_table(layout, name):
            table = store.open_table(layout, name)
            if table.transaction_version(batch_app_id(generation)) is None:
                Folder.at(layout.table(name)).delete_folder(files.generation_folder(generation))


def _remove_from(layout: Layout, name: str, generation: int) -> int:
    removed: list[RemoveAction] = []

    def drop_files(table: DeltaTable) -> store.Change | None:
        removed[:] = [files.remove_file(generation, path, size) for path, size in generation_files(table, generation)]
        return store.Change(removed=removed) if removed else None

    store.transact(layout, name, drop_files)
    return len(removed)


def list_files(table: DeltaTable) -> list[tuple[str, int]]:
    """Return the path and generation of every live file."""
    live = pa.table(table.get_add_actions(flatten=True))
    return list(zip(live["path"].to_pylist(), live["partition.generation"].to_pylist(), strict=True))


def generation_files(table: DeltaTable, generation: int) -> list[tuple[str, int]]:
    """Return the path and size of every live file of a generation."""
    live = pa.table(table.get_add_actions(flatten=True))
    live = live.filter(pc.equal(live["partition.generation"], generation))
    return list(zip(live["path"].to_pylist(), live["size_bytes"].to_pylist(), strict=True))
