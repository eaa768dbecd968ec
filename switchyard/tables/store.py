"""Open, read and change Delta tables through delta-rs.

Every commit becomes exactly the version after the one that was read; else the writer reads and decides again. delta-rs
never retries by itself, as it refuses an append when maintenance has removed rows since the table was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from switchyard.errors import LostRaceError, UnwritableError
from switchyard.layout import Layout
from switchyard.object_store import explain_failure, find_store, is_on_object_store
from switchyard.tables.folders import Folder, options_of
from switchyard.tables.schemas import FILE_SCHEMAS, PARTITIONED, SCHEMAS

Row = dict[str, Any]
MOST_RACES = 200
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 1.6)
"""Seconds between the tries of a commit that fails although the table has not changed."""
NO_RETRIES = CommitProperties(max_commit_retries=0)
# Each checkpoint of the log lists the files that were removed in this time, and every reader reads that list. Short,
# because our vacuum does not need it.
PROPERTIES = {"delta.deletedFileRetentionDuration": "interval 1 days"}
# Opening a table reads every log entry since the last checkpoint, and in a bucket each is a request. The default of
# delta-rs is a checkpoint in 100 commits.
IN_A_BUCKET = {"delta.checkpointInterval": "20"}


@dataclass(frozen=True)
class Change:
    """What one commit does: rows or files to add, files to remove, and the markers it leaves."""

    rows: Sequence[Mapping[str, Any]] = ()
    mode: Literal["append", "overwrite"] = "append"
    added: Sequence[AddAction] = ()
    removed: Sequence[RemoveAction] = ()
    markers: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Stored in the commit, for readers of the table's history."""


def open_table(layout: Layout, name: str, version: int | None = None) -> DeltaTable:
    """Open a table at a version (default: the newest); create it if it is absent."""
    try:
        return open_version(layout, name, version)
    except TableNotFoundError:
        create_table(layout, name)
        return open_version(layout, name, version)


def open_version(layout: Layout, name: str, version: int | None) -> DeltaTable:
    """Open a table that exists, at a version; None means the newest."""
    uri = layout.table(name)
    with _explained(uri):
        return DeltaTable(uri, version=version, storage_options=options_of(uri))


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Say in one sentence why an object store refuses; of a disk, Python's own error says it."""
    try:
        yield
    except OSError as error:
        if not is_on_object_store(uri):
            raise
        raise explain_failure(find_store(), uri, str(error)) from None


def create_table(layout: Layout, name: str) -> None:
    """Create a table as version 0, unless another process creates it at the same time."""
    try:
        DeltaTable.create(
            layout.table(name),
            schema=SCHEMAS[name],
            partition_by=["generation"] if name in PARTITIONED else None,
            mode="error",
            configuration=PROPERTIES | (IN_A_BUCKET if is_on_object_store(layout.table(name)) else {}),
            storage_options=options_of(layout.table(name)),
            commit_properties=NO_RETRIES,
        )
    except DeltaError:
        if not has_table(layout, name):
            raise


def add_new_columns(table: DeltaTable, name: str) -> None:
    """Add the columns that a table lacks because an earlier version of Switchyard created it."""
    for _ in range(MOST_RACES):
        missing = find_missing_columns(table, name)
        if not missing or _is_next(table, partial(table.alter.add_columns, missing, commit_properties=NO_RETRIES)):
            return
    raise LostRaceError(f"the table {name} is changed by others faster than a column can be added; try again")


def find_missing_columns(table: DeltaTable, name: str) -> list[Field]:
    present = {field.name for field in table.schema().fields}
    missing = pa.schema([field for field in SCHEMAS[name] if field.name not in present])
    return Schema.from_arrow(missing).fields


def has_table(layout: Layout, name: str) -> bool:
    uri = layout.table(name)
    with _explained(uri):
        return bool(DeltaTable.is_deltatable(uri, options_of(uri)))


def append_rows(layout: Layout, name: str, rows: Sequence[Mapping[str, Any]], table: DeltaTable | None = None) -> None:
    """Append rows that do not depend on what the table holds. A caller that does this often passes its open table."""
    transact(layout, name, lambda _: Change(rows=rows), table)


def transact(
    layout: Layout, name: str, decide: Callable[[DeltaTable], Change | None], kept: DeltaTable | None = None
) -> int | None:
    """Decide on the newest version, and commit the decision as the very next one; return that version.

    A decision of None changes nothing. `kept` is the table as the caller holds it open.
    """
    if kept is not None:
        kept.update_incremental()
    table = kept or open_table(layout, name)
    for _ in range(MOST_RACES):
        change = decide(table)
        if change is None:
            return None
        if commit_next(table, name, change):
            return int(table.version())
    raise LostRaceError(f"the table {name} is changed by others faster than it can be read; try again")


def commit_next(table: DeltaTable, name: str, change: Change) -> bool:
    """Commit as the version after the table's, and bring the table to the newest version.

    Return False if another writer took that version: then nothing was committed.
    """
    return _is_next(table, lambda: _commit(table, name, change))


def _is_next(table: DeltaTable, commit: Callable[[], None]) -> bool:
    """Try to commit the next version; return False after a lost race, and raise any other failure."""
    before = table.version()
    for pause in (*PAUSES, None):
        try:
            commit()
        except DeltaError as error:
            table.update_incremental()
            # With the log cut behind a table that was kept open for long, delta-rs says "Invalid table version".
            if table.version() != before:
                return False
            if not isinstance(error, CommitFailedError):
                raise
            # The table is as it was, so the decision still holds: try the same commit again.
            if pause is None:
                raise UnwritableError(_describe_refusal(table, error)) from error
            time.sleep(pause)
        else:
            break
    if table.version() == before:
        table.update_incremental()
    return True


def _describe_refusal(table: DeltaTable, error: CommitFailedError) -> str:
    return (
        f"the table at {table.table_uri} takes no commit after version {table.version()}, and nobody else has changed "
        f"it: {error}; see that its folder _delta_log can be written, then try again"
    )


def _commit(table: DeltaTable, name: str, change: Change) -> None:
    properties = CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(app_id, version) for app_id, version in change.markers.items()],
        custom_metadata=dict(change.metadata),
    )
    if change.rows:
        write_deltalake(table, rows_to_arrow(name, change.rows), mode=change.mode, commit_properties=properties)
        return
    table.create_write_transaction(
        [*change.added, *change.removed],
        "append",
        SCHEMAS[name],
        ["generation"] if name in PARTITIONED else None,
        commit_properties=properties,
    )


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
    """Read rows of a table; an absent table reads as empty.

    `where` may name only columns with statistics in the log, so of the big tables none of text: delta-rs takes missing
    statistics for null bounds, and finds no row of the file.
    """
    if not has_table(layout, name):
        return SCHEMAS[name].empty_table()
    table = open_version(layout, name, version)
    return read_snapshot(table, name, generation=generation, where=where, columns=columns)


def read_snapshot(
    table: DeltaTable,
    name: str,
    *,
    generation: int | None = None,
    where: pc.Expression | None = None,
    columns: list[str] | None = None,
) -> pa.Table:
    if where is None:
        return read_files(table, name, live_paths(table, generation), columns)
    pruning = None if generation is None else [("generation", "=", str(generation))]
    dataset = table.to_pyarrow_dataset(
        file_pruning_predicate=pruning, schema=SCHEMAS[name], filesystem=Folder.at(table.table_uri).as_filesystem()
    )
    return dataset.to_table(columns=columns or SCHEMAS[name].names, filter=where)


def live_paths(table: DeltaTable, generation: int | None) -> dict[str, int | None]:
    """Return the live files of a table, or of one of its generations, with the generation of each."""
    live = pa.table(table.get_add_actions(flatten=True))
    named = live["partition.generation"].to_pylist() if "partition.generation" in live.column_names else []
    generations = named or [None] * live.num_rows
    listed = zip(live["path"].to_pylist(), generations, strict=True)
    return {unquote(path): its for path, its in listed if generation is None or its == generation}


def read_files(table: DeltaTable, name: str, paths: Mapping[str, int | None], columns: list[str] | None) -> pa.Table:
    """Read some files of a table, given with the generation of each."""
    # Not by the dataset of delta-rs, which makes an expression of the statistics of every live file.
    wanted = pa.schema([SCHEMAS[name].field(column) for column in columns or SCHEMAS[name].names])
    schema = FILE_SCHEMAS[name]
    stored = [column for column in wanted.names if column in schema.names]
    folder = Folder.at(table.table_uri).as_filesystem()
    parts = [wanted.empty_table()]
    for generation in dict.fromkeys(paths.values()):
        chosen = [path for path, its in paths.items() if its == generation]
        rows = ds.dataset(chosen, schema=schema, filesystem=folder, format="parquet").to_table(stored)
        if len(stored) < len(wanted):
            rows = rows.append_column("generation", pa.repeat(pa.scalar(generation, pa.int64()), rows.num_rows))
        parts.append(rows.select(wanted.names).cast(wanted))
    return pa.concat_tables(parts)


def read_file(folder: pafs.FileSystem, path: str, name: str) -> list[Row]:
    """Read one data file of a table that is not partitioned; columns that it was written without are null."""
    rows = ds.dataset(path, schema=SCHEMAS[name], filesystem=folder, format="parquet").to_table()
    return list(rows.to_pylist())


def list_files(layout: Layout, name: str, version: int, generation: int) -> list[str]:
    """List the data files of a generation at a version, as full paths or URIs."""
    table = open_version(layout, name, version)
    return list(table.file_uris(file_pruning_predicate=[("generation", "=", str(generation))]))


def count_rows(layout: Layout, name: str, version: int, generation: int) -> int:
    """Count the rows of a generation at a version, by the log alone."""
    live = pa.table(open_version(layout, name, version).get_add_actions(flatten=True))
    return pc.sum(live.filter(pc.equal(live["partition.generation"], generation))["num_records"]).as_py() or 0


def read_rows(layout: Layout, name: str, **options: Any) -> list[Row]:
    return list(read_arrow(layout, name, **options).to_pylist())


def list_paths(table: DeltaTable) -> list[str]:
    """List the live files, as the log names them."""
    return list(pa.table(table.get_add_actions())["path"].to_pylist())


def now_ms() -> int:
    return int(time.time() * 1000)
