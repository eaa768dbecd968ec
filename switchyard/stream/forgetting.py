"""Carries out the marks of `forgotten`: on the rows of a batch, and on what a generation has stored.

A forgotten record is treated alike wherever it turns up: its values are gone, and its position stays, as a row of
`rejects` without a value, so that every consumed offset is still accounted for. Without Spark: the command line does
this for generations that have no driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from switchyard.generations import GenerationSpec
from switchyard.stream import changes
from switchyard.stream.changes import BATCH_SCHEMA, ROW_SCHEMA, Batch, Side
from switchyard.tables import files
from switchyard.tables.forgotten import Marks, Mask
from switchyard.tables.removal import generation_files
from switchyard.tables.schemas import ACCOUNTS, REJECTS, USERS
from switchyard.tables.writer import Revision, TableWriter

REASON = "the person was forgotten"
POSITION = ("topic", "partition", "offset", "ts")
SIDES: dict[str, Side] = {"users": "user", "accounts": "account"}


def skip_forgotten(rows: pa.Table, marks: Marks, spec: GenerationSpec) -> pa.Table:
    """The rows of a batch without forgotten pairs, and with forgotten records as rejects without a value."""
    if not marks.marks:
        return rows
    gone = np.zeros(rows.num_rows, dtype=bool)
    for side, topic in (("user", spec.usersTopic), ("account", spec.accountsTopic)):
        gone |= marks.is_forgotten(topic, rows, "userId", f"{side}Partition", f"{side}Offset")
    if not gone.any():
        return rows
    is_pair = pc.equal(rows["kind"], "pair").to_numpy(zero_copy_only=False)
    return pa.concat_tables([rows.filter(pa.array(~gone)), _blank(rows.filter(pa.array(gone & ~is_pair)))])


def _blank(rows: pa.Table) -> pa.Table:
    kept = {f"{side}{name}" for side in SIDES.values() for name in ("Ts", "Partition", "Offset")}
    given = {"kind": "reject", "reason": REASON}
    columns = [
        rows[field.name] if field.name in kept else _repeat(given.get(field.name), field.type, rows.num_rows)
        for field in BATCH_SCHEMA
    ]
    return pa.table(columns, schema=BATCH_SCHEMA)


def _repeat(value: str | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


@dataclass(frozen=True)
class Events:
    """What is stored of the persons of some marks, by table, with the columns of the table."""

    gone: dict[str, pa.Table]
    kept: dict[str, pa.Table]

    @property
    def persons(self) -> set[str]:
        return {person for rows in self.gone.values() for person in rows["userId"].to_pylist()}

    def kept_of(self, name: str) -> pa.Table:
        """Of those who lose a record, the records that came after they were forgotten."""
        rows = self.kept[name]
        return rows.filter(pc.is_in(rows["userId"], value_set=pa.array(self.persons, pa.string())))


def carry_out(writers: Mapping[str, TableWriter], spec: GenerationSpec, marks: Marks) -> dict[str, int]:
    """Removes what the marks say from the tables of a generation; returns how many rows each table lost.

    The order matters to one who takes over in between: what `rejects` and `joined` get follows from what `users` and
    `accounts` still hold.
    """
    number = marks.newest
    todo = marks.after(min(writer.last_mark() for writer in writers.values()))
    events = find_events(writers, spec, todo)
    blanks = pa.concat_tables([_positions(rows) for rows in events.gone.values()])
    lost = {name: rows.num_rows for name, rows in events.gone.items()} | {"joined": 0, "rejects": 0}

    def blank_rejects(table: DeltaTable) -> Revision:
        revision, lost["rejects"] = _blank_rejects(writers["rejects"], table, todo)
        if blanks.num_rows:
            revision.added.append(writers["rejects"].write(blanks))
        return revision

    def join_again(table: DeltaTable) -> Revision:
        revision, lost["joined"] = _drop_persons(writers["joined"], table, events.persons)
        rows = join_events(events.kept_of("users"), events.kept_of("accounts"), spec)
        revision.added.extend(write_joined(writers["joined"], rows))
        return revision

    writers["rejects"].commit_mark(number, blank_rejects)
    writers["joined"].commit_mark(number, join_again)
    for name in SIDES:
        _remove_events(writers[name], number, topic_of(spec, name), todo, events.persons)
    return lost


def topic_of(spec: GenerationSpec, name: str) -> str:
    return spec.usersTopic if name == "users" else spec.accountsTopic


def find_events(writers: Mapping[str, TableWriter], spec: GenerationSpec, marks: Marks) -> Events:
    gone, kept = {}, {}
    for name in SIDES:
        schema = USERS if name == "users" else ACCOUNTS
        empty = pa.schema([field for field in schema if field.name != "generation"]).empty_table()
        found = [empty, *_rows_of_persons(writers[name], marks, empty.schema)]
        rows = pa.concat_tables(found)
        is_gone = _is_gone(rows, topic_of(spec, name), marks)
        gone[name], kept[name] = rows.filter(pa.array(is_gone)), rows.filter(pa.array(~is_gone))
    return Events(gone, kept)


def _rows_of_persons(writer: TableWriter, marks: Marks, schema: pa.Schema) -> Iterator[pa.Table]:
    for path, _ in generation_files(writer.refresh(), writer.generation):
        persons = marks.find_persons(pc.unique(writer.folder.read(path, ["userId"])["userId"]).to_pylist())
        if persons:
            rows = writer.folder.read(path).select(schema.names).cast(schema)
            yield rows.filter(pc.is_in(rows["userId"], value_set=pa.array(persons, pa.string())))


def _is_gone(rows: pa.Table, topic: str, marks: Marks) -> Mask:
    return marks.is_forgotten(topic, rows, "userId", "partition", "offset")


def _positions(events: pa.Table) -> pa.Table:
    """Events as rows of `rejects` without a value."""
    given = {"reason": REASON}
    fields = [field for field in REJECTS if field.name != "generation"]
    columns = [
        events[field.name] if field.name in POSITION else _repeat(given.get(field.name), field.type, events.num_rows)
        for field in fields
    ]
    return pa.table(columns, schema=pa.schema(fields))


def _remove_events(writer: TableWriter, number: int, topic: str, marks: Marks, persons: set[str]) -> None:
    def remove(table: DeltaTable) -> Revision:
        revision = Revision()
        for path, size, is_theirs in _files_with(writer, table, persons):
            rows = writer.folder.read(path, ["userId", "partition", "offset"])
            gone = is_theirs.copy()
            gone[is_theirs] = _is_gone(rows.filter(pa.array(is_theirs)), topic, marks)
            if gone.any():
                _rewrite(writer, revision, path, size, gone)
        return revision

    writer.commit_mark(number, remove)


def _drop_persons(writer: TableWriter, table: DeltaTable, persons: set[str]) -> tuple[Revision, int]:
    revision, dropped = Revision(), 0
    for path, size, gone in _files_with(writer, table, persons):
        dropped += int(gone.sum())
        _rewrite(writer, revision, path, size, gone)
    return revision, dropped


def _files_with(writer: TableWriter, table: DeltaTable, persons: set[str]) -> Iterator[tuple[str, int, Mask]]:
    """The files that hold rows of these persons, with which rows these are."""
    wanted = pa.array(persons, pa.string())
    for path, size in generation_files(table, writer.generation) if persons else []:
        ids = writer.folder.read(path, ["userId"])["userId"]
        theirs = pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False)
        if theirs.any():
            yield path, size, theirs


def _blank_rejects(writer: TableWriter, table: DeltaTable, marks: Marks) -> tuple[Revision, int]:
    revision, blanked = Revision(), 0
    for path, size in generation_files(table, writer.generation):
        rows = writer.folder.read(path)
        gone = is_forgotten_reject(rows, marks)
        if gone.any():
            blanked += int(gone.sum())
            _rewrite(writer, revision, path, size, gone, [_positions(rows.filter(pa.array(gone)))])
    return revision, blanked


def is_forgotten_reject(rows: pa.Table, marks: Marks) -> Mask:
    owned = rows.append_column("userId", pa.array(map(owner_of, rows["value"].to_pylist()), pa.string()))
    gone: Mask = np.zeros(rows.num_rows, dtype=bool)
    for topic in pc.unique(rows["topic"]).to_pylist():
        is_there = pc.equal(rows["topic"], topic).to_numpy(zero_copy_only=False)
        gone |= is_there & _is_gone(owned, topic, marks)
    return gone


def owner_of(value: str | None) -> str | None:
    """The userId in the value of a rejected record; None where there is none to be read."""
    try:
        document = json.loads(value or "", parse_int=str, parse_float=str, parse_constant=str)
        owner = document.get("userId") if isinstance(document, dict) else None
        # Half of a surrogate pair, which JSON can name, is no text.
        return owner if isinstance(owner, str) and owner.encode() is not None else None
    except (ValueError, RecursionError):
        return None


def _rewrite(
    writer: TableWriter, revision: Revision, path: str, size: int, gone: Mask, instead: list[pa.Table] | None = None
) -> None:
    """Puts a file without some of its rows, and with others in their place, into a revision."""
    revision.removed.append(files.remove_file(writer.generation, path, size))
    rows = writer.folder.read(path)
    kept = pa.concat_tables([rows.filter(pa.array(~gone)), *[new.cast(rows.schema) for new in instead or []]])
    if kept.num_rows:
        revision.added.append(writer.write(kept))


def write_joined(writer: TableWriter, rows: pa.Table) -> list[AddAction]:
    """Rows without an account go into files of their own, so that finding them again reads little else."""
    if rows["accountOffset"].null_count in (0, rows.num_rows):
        return [writer.write(rows)] if rows.num_rows else []
    lonely = rows["accountOffset"].is_null()
    return [writer.write(rows.filter(part)) for part in (lonely, pc.invert(lonely))]


def join_events(users: pa.Table, accounts: pa.Table, spec: GenerationSpec) -> pa.Table:
    """The join of a few stored events: what one batch of just these would add."""
    left, right = (_named(rows, side) for rows, side in ((users, "user"), (accounts, "account")))
    pairs = left.join(right, keys="userId", join_type="inner")
    if spec.joinType == "asof":
        pairs = pairs.filter(pc.less_equal(pairs["userTs"], pairs["accountTs"]))
    if spec.stateRetention is not None:
        apart = pc.abs(pc.subtract(pairs["userTs"].cast(pa.int64()), pairs["accountTs"].cast(pa.int64())))
        pairs = pairs.filter(pc.less_equal(apart, int(spec.stateRetention.total_seconds() * 1_000_000)))
    batch = Batch(_as_rows(left), _as_rows(right), _as_rows(pairs), BATCH_SCHEMA.empty_table(), tombstones=0)
    return changes.joined_changes(batch, spec.joinType).appended


def _named(events: pa.Table, side: str) -> pa.Table:
    renamed = {name: f"{side}{name.capitalize()}" for name in ("ts", "partition", "offset")}
    kept = events.drop_columns(["topic"])
    return kept.rename_columns([renamed.get(name, name) for name in kept.column_names])


def _as_rows(rows: pa.Table) -> pa.Table:
    columns = [
        rows[field.name] if field.name in rows.column_names else _repeat(None, field.type, rows.num_rows)
        for field in ROW_SCHEMA
    ]
    return pa.table(columns, schema=ROW_SCHEMA)
