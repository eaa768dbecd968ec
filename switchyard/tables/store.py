"""Opening, reading and changing Delta tables through delta-rs.

Every decision that must happen once (a flip, a number, an outcome, a batch) goes through `transact`: it commits at
exactly the version after the one that was read, or reads and decides again. Plain facts are appended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from switchyard.errors import LostRaceError
from switchyard.layout import Layout
from switchyard.tables.schemas import PARTITIONED, SCHEMAS

Row = dict[str, Any]
MOST_RACES = 200
# Each checkpoint of the log lists the files that were removed in this time, and every reader reads that list. Our own
# vacuum does not go by it.
PROPERTIES = {"delta.deletedFileRetentionDuration": "interval 1 days"}


@dataclass(frozen=True)
class Change:
    """What one commit does: rows or files to add, files to remove, and the markers it leaves."""

    rows: Sequence[Mapping[str, Any]] = ()
    mode: Literal["append", "overwrite"] = "append"
    added: Sequence[AddAction] = ()
    removed: Sequence[RemoveAction] = ()
    markers: Mapping[str, int] = field(default_factory=dict)


def open_table(layout: Layout, name: str, version: int | None = None) -> DeltaTable:
    """The table at a version (newest by default); an absent one is created first."""
    uri = layout.table(name)
    try:
        return DeltaTable(uri, version=version)
    except TableNotFoundError:
        create_table(layout, name)
        return DeltaTable(uri, version=version)


def create_table(layout: Layout, name: str) -> None:
    try:
        DeltaTable.create(
            layout.table(name),
            schema=SCHEMAS[name],
            partition_by=["generation"] if name in PARTITIONED else None,
            mode="error",
            configuration=PROPERTIES,
        )
    except DeltaError:
        if not DeltaTable.is_deltatable(layout.table(name)):
            raise


def add_new_columns(table: DeltaTable, name: str) -> None:
    """Brings a table that an earlier version has created to the present columns."""
    present = {field.name for field in table.schema().fields}
    missing = pa.schema([field for field in SCHEMAS[name] if field.name not in present])
    if missing.names:
        table.alter.add_columns(Schema.from_arrow(missing).fields)


def has_table(layout: Layout, name: str) -> bool:
    return bool(DeltaTable.is_deltatable(layout.table(name)))


def append_rows(layout: Layout, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds facts that no other writer's commit can make wrong."""
    write_deltalake(open_table(layout, name), rows_to_arrow(name, rows), mode="append")


def transact(layout: Layout, name: str, decide: Callable[[DeltaTable], Change | None]) -> int | None:
    """Decides on the newest version and commits the decision as the very next one; None changes nothing."""
    table = open_table(layout, name)
    for _ in range(MOST_RACES):
        change = decide(table)
        if change is None:
            return None
        if commit_next(table, name, change):
            table.update_incremental()
            return int(table.version())
        table.update_incremental()
    raise LostRaceError(f"the table {name} is changed by others faster than it can be read")


def commit_next(table: DeltaTable, name: str, change: Change) -> bool:
    """Commits as the version after the table's; False when somebody else took that version."""
    properties = CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(app_id, version) for app_id, version in change.markers.items()],
    )
    try:
        if change.rows:
            rows = rows_to_arrow(name, change.rows)
            write_deltalake(table, rows, mode=change.mode, commit_properties=properties)
        else:
            table.create_write_transaction(
                [*change.added, *change.removed],
                "append",
                SCHEMAS[name],
                ["generation"] if name in PARTITIONED else None,
                commit_properties=properties,
            )
    except CommitFailedError:
        return False
    return True


def rows_to_arrow(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMAS[name])


def read_arrow(
    layout: Layout,
    name: str,
    *,
    version: int | None = None,
    generation: int | None = None,
    where: pc.Expression | None = None,
    columns: list[str] | None = None,
) -> pa.Table:
    """Rows of a table; an absent table reads as empty.

    `where` may name only columns with statistics in the log: of the big tables none of text. delta-rs takes missing
    ones for null bounds, and no row of the file is found.
    """
    if not has_table(layout, name):
        return SCHEMAS[name].empty_table()
    table = DeltaTable(layout.table(name), version=version)
    return read_snapshot(table, name, generation=generation, where=where, columns=columns)


def read_snapshot(
    table: DeltaTable,
    name: str,
    *,
    generation: int | None = None,
    where: pc.Expression | None = None,
    columns: list[str] | None = None,
) -> pa.Table:
    pruning = None if generation is None else [("generation", "=", str(generation))]
    dataset = table.to_pyarrow_dataset(
        file_pruning_predicate=pruning, schema=SCHEMAS[name], filesystem=folder_of(table.table_uri)
    )
    return dataset.to_table(columns=columns or SCHEMAS[name].names, filter=where)


def read_file(folder: pafs.FileSystem, path: str, name: str) -> list[Row]:
    """The rows of one data file of a table that is not partitioned; columns it was written without are null."""
    rows = ds.dataset(path, schema=SCHEMAS[name], filesystem=folder, format="parquet").to_table()
    return list(rows.to_pylist())


def list_files(layout: Layout, name: str, version: int, generation: int) -> list[str]:
    """The data files of a generation at a version, as full paths or URIs."""
    table = DeltaTable(layout.table(name), version=version)
    return list(table.file_uris(file_pruning_predicate=[("generation", "=", str(generation))]))


def folder_of(uri: str) -> pafs.FileSystem:
    """The folder of a table as a native file system.

    The default one calls back into Python from Arrow's threads, and the process may abort at its exit.
    """
    filesystem, path = pafs.FileSystem.from_uri(uri)
    return pafs.SubTreeFileSystem(path, filesystem)


def read_rows(layout: Layout, name: str, **options: Any) -> list[Row]:
    return list(read_arrow(layout, name, **options).to_pylist())


def now_ms() -> int:
    return int(time.time() * 1000)
