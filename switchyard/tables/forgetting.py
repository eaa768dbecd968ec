"""Carry out the marks of `forgotten`: on the rows of a batch, and on the stored rows of a generation.

Of a forgotten record only the position stays, as a row of `rejects` without a value, so that every consumed offset is
still accounted for. This uses no Spark: the command line does it for generations that have no driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from switchyard.records import JOIN_RULES, KEY, PLACE, POSITION, POSITIONS, SIDES, Side
from switchyard.spec import GenerationSpec
from switchyard.tables import files, joined_changes
from switchyard.tables.forgotten import Marks, Mask, owner_of
from switchyard.tables.joined_changes import BATCH_SCHEMA, ROW_SCHEMA, Batch
from switchyard.tables.joined_writer import write_joined
from switchyard.tables.pieces import FILE_BYTES, PIECE_BYTES, PIECE_ROWS, gather
from switchyard.tables.removal import generation_files
from switchyard.tables.schemas import FILE_SCHEMAS
from switchyard.tables.writer import FILE_ROWS, Revision, TableWriter

REASON = "the person was forgotten"
WHERE = ("topic", *POSITION)
OWNED = (KEY, *PLACE)
"""Whose an event is, and which"""
MOST_PAIRS = 250_000
PAIR_BYTES = 64 * 2**20
ROW_BYTES = 64
"""Of the numbers and times in a row"""


def skip_forgotten(rows: pa.Table, marks: Marks, spec: GenerationSpec) -> pa.Table:
    """Drop the forgotten pairs of a batch; replace its forgotten records by rejects without a value."""
    if not marks.marks:
        return rows
    gone = np.zeros(rows.num_rows, dtype=bool)
    for side in SIDES:
        gone |= marks.is_forgotten(spec.topic_of(side), rows, KEY, *side.place)
    if not gone.any():
        return rows
    is_pair = pc.equal(rows["kind"], "pair").to_numpy(zero_copy_only=False)
    return pa.concat_tables([rows.filter(pa.array(~gone)), _blank(rows.filter(pa.array(gone & ~is_pair)))])


def _blank(rows: pa.Table) -> pa.Table:
    given = {"kind": "reject", "reason": REASON}
    columns = [
        rows[field.name] if field.name in POSITIONS else _repeat(given.get(field.name), field.type, rows.num_rows)
        for field in BATCH_SCHEMA
    ]
    return pa.table(columns, schema=BATCH_SCHEMA)


def _repeat(value: str | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


Pieces = Callable[[], Iterable[pa.Table]]
"""Stored events in pieces of bounded size, read again whenever they are asked for."""


def carry_out(writers: Mapping[str, TableWriter], spec: GenerationSpec, marks: Marks) -> dict[str, int]:
    """Remove what the marks say from the tables of a generation; return how many rows each table lost."""
    number = marks.newest
    todo = marks.after(min(writer.last_mark() for writer in writers.values()))
    persons = find_persons(writers, spec, todo)
    lost = dict.fromkeys(writers, 0)

    def blank_rejects(table: DeltaTable) -> Revision:
        revision, lost["rejects"] = _without(
            writers["rejects"], table, lambda rows: is_forgotten_reject(rows, todo), instead=_positions
        )
        revision.added.extend(writers["rejects"].write_all(_blanks(writers, spec, todo, persons)))
        return revision

    def join_again(table: DeltaTable) -> Revision:
        revision, lost["joined"] = _without(writers["joined"], table, lambda rows: _is_of(rows, persons), [KEY])
        events = {side: partial(_scan_kept, writers[side.plural], spec.topic_of(side), todo, persons) for side in SIDES}
        for rows in gather(join_events(events, spec), FILE_ROWS, FILE_BYTES):
            revision.added.extend(write_joined(writers["joined"], rows))
        return revision

    def remove_events(side: Side, table: DeltaTable) -> Revision:
        find = partial(_is_gone, topic=spec.topic_of(side), marks=todo, persons=persons)
        revision, lost[side.plural] = _without(writers[side.plural], table, find, OWNED)
        return revision

    # Another attempt may take over between two commits, and computes the new rows of `rejects` and `joined` from what
    # `users` and `accounts` still hold: so these come last.
    writers["rejects"].commit_mark(number, blank_rejects)
    writers["joined"].commit_mark(number, join_again)
    for side in SIDES:
        writers[side.plural].commit_mark(number, partial(remove_events, side))
    return lost


def find_persons(writers: Mapping[str, TableWriter], spec: GenerationSpec, marks: Marks) -> set[str]:
    """Return the user ids that lose a record by some marks."""
    persons: set[str] = set()
    for side in SIDES:
        for rows in _scan_all(writers[side.plural], OWNED):
            gone = rows.filter(pa.array(marks.is_forgotten(spec.topic_of(side), rows, *OWNED)))
            persons.update(pc.unique(gone[KEY]).to_pylist())
    return persons


def _scan_all(writer: TableWriter, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    for path, _ in generation_files(writer.refresh(), writer.generation):
        yield from writer.scan(path, columns)


def _scan_kept(writer: TableWriter, topic: str, marks: Marks, persons: set[str]) -> Iterator[pa.Table]:
    """Scan the records of these persons that stay, because they came after the marks."""
    for rows in _scan_all(writer) if persons else ():
        theirs = rows.filter(pa.array(_is_of(rows, persons)))
        yield theirs.filter(pa.array(~marks.is_forgotten(topic, theirs, *OWNED)))


def _is_of(rows: pa.Table, persons: set[str]) -> Mask:
    return np.asarray(pc.is_in(rows[KEY], value_set=pa.array(persons, pa.string())).to_numpy())


def _is_gone(rows: pa.Table, topic: str, marks: Marks, persons: set[str]) -> Mask:
    """Return, row by row, whether the event is forgotten."""
    # Hash only the ids of these persons: hashing is slow.
    gone = _is_of(rows, persons)
    gone[gone] = marks.is_forgotten(topic, rows.filter(pa.array(gone)), *OWNED)
    return gone


def _blanks(
    writers: Mapping[str, TableWriter], spec: GenerationSpec, marks: Marks, persons: set[str]
) -> Iterator[pa.Table]:
    """Return the records that are removed, as rows of `rejects`."""
    for side in SIDES if persons else ():
        for rows in _scan_all(writers[side.plural], [KEY, *WHERE]):
            yield _positions(rows.filter(pa.array(_is_gone(rows, spec.topic_of(side), marks, persons))))


def _positions(events: pa.Table) -> pa.Table:
    """Turn events into rows of `rejects` without a value."""
    given, schema = {"reason": REASON}, FILE_SCHEMAS["rejects"]
    columns = [
        events[field.name] if field.name in WHERE else _repeat(given.get(field.name), field.type, events.num_rows)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _without(
    writer: TableWriter,
    table: DeltaTable,
    find: Callable[[pa.Table], Mask],
    columns: Sequence[str] | None = None,
    instead: Callable[[pa.Table], pa.Table] | None = None,
) -> tuple[Revision, int]:
    """Write the files that hold rows which `find` finds in these columns again without them; count these rows."""
    revision, count = Revision(), 0
    for path, size in generation_files(table, writer.generation):
        found = sum(int(find(rows).sum()) for rows in writer.scan(path, columns))
        if found:
            count += found
            revision.removed.append(files.remove_file(writer.generation, path, size))
            revision.added.extend(writer.write_all(_replace(writer.scan(path), find, instead)))
    return revision, count


def _replace(
    pieces: Iterable[pa.Table], find: Callable[[pa.Table], Mask], instead: Callable[[pa.Table], pa.Table] | None
) -> Iterator[pa.Table]:
    for rows in pieces:
        gone = find(rows)
        yield rows.filter(pa.array(~gone))
        if instead is not None:
            yield instead(rows.filter(pa.array(gone)))


def is_forgotten_reject(rows: pa.Table, marks: Marks) -> Mask:
    owned = rows.append_column(KEY, pa.array(map(owner_of, rows["value"].to_pylist()), pa.string()))
    gone: Mask = np.zeros(rows.num_rows, dtype=bool)
    for topic in pc.unique(rows["topic"]).to_pylist():
        is_there = pc.equal(rows["topic"], topic).to_numpy(zero_copy_only=False)
        gone |= is_there & marks.is_forgotten(topic, owned, *OWNED)
    return gone


def join_events(events: Mapping[Side, Pieces], spec: GenerationSpec) -> Iterator[pa.Table]:
    """Join stored events: return what one batch of just these would add.

    Each part of the leading side meets the other side part by part, so that memory holds neither all events of a
    person nor all pairs of two parts.
    """
    leading = JOIN_RULES[spec.joinType].leading
    for part in _parts(events[leading]):
        yield from _join_part(part, events[leading.other], spec)


def _parts(events: Pieces) -> Iterator[pa.Table]:
    return gather(events(), PIECE_ROWS, PIECE_BYTES)


def _join_part(part: pa.Table, others: Pieces, spec: GenerationSpec) -> Iterator[pa.Table]:
    """Return all rows of some events of the leading side: pairs as they are found, or of each event the latest one."""
    rule = JOIN_RULES[spec.joinType]
    side = rule.leading
    leading, latest = _as_rows(_named(part, side)), ROW_SCHEMA.empty_table()
    has_pair = np.zeros(part.num_rows, dtype=bool)
    for other in _parts(others):
        for pairs in _pairs(part, other, spec):
            if not rule.takes_latest:
                has_pair |= np.isin(joined_changes.keys_of(leading, side), joined_changes.keys_of(pairs, side))
                yield pairs
                continue
            latest = joined_changes.keep_latest(pa.concat_tables([latest, pairs]), side)
            if latest.nbytes > PAIR_BYTES and part.num_rows > 1:
                for half in _halves(part):
                    yield from _join_part(half, others, spec)
                return
    events = {side: leading.filter(pa.array(~has_pair)), side.other: ROW_SCHEMA.empty_table()}
    batch = Batch(events, latest, BATCH_SCHEMA.empty_table(), tombstones=0)
    yield joined_changes.joined_changes(batch, spec.joinType).appended


def _pairs(part: pa.Table, other: pa.Table, spec: GenerationSpec) -> Iterator[pa.Table]:
    rule = JOIN_RULES[spec.joinType]
    for some, some_others in _tiles(part, other):
        pairs = _named(some, rule.leading).join(_named(some_others, rule.leading.other), keys=KEY, join_type="inner")
        if rule.looks_back:
            pairs = pairs.filter(pc.less_equal(pairs[rule.leading.other.ts], pairs[rule.leading.ts]))
        if spec.stateRetention is not None:
            apart = pc.abs(pc.subtract(*(pairs[side.ts].cast(pa.int64()) for side in SIDES)))
            pairs = pairs.filter(pc.less_equal(apart, int(spec.stateRetention.total_seconds() * 1_000_000)))
        if pairs.num_rows:
            yield _as_rows(pairs)


def _tiles(one: pa.Table, two: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Cut two tables so that any two parts make few pairs, even if all events have one key."""
    most = one.num_rows * two.num_rows
    if not most:
        return
    if most == 1 or (most <= MOST_PAIRS and most * (_longest_row(one) + _longest_row(two)) <= PAIR_BYTES):
        yield one, two
    elif one.num_rows >= two.num_rows:
        for half in _halves(one):
            yield from _tiles(half, two)
    else:
        for half in _halves(two):
            yield from _tiles(one, half)


def _halves(rows: pa.Table) -> list[pa.Table]:
    middle = rows.num_rows // 2
    return [rows.slice(0, middle), rows.slice(middle)]


def _longest_row(rows: pa.Table) -> int:
    """Estimate the bytes of the longest row."""
    texts = [column for column in rows.columns if pa.types.is_string(column.type)]
    longest = pc.max(reduce(pc.add, [pc.coalesce(pc.binary_length(column), 0) for column in texts])).as_py()
    return int(longest) + ROW_BYTES


def _named(events: pa.Table, side: Side) -> pa.Table:
    kept = events.drop_columns(["topic"])
    return kept.rename_columns([side.position.get(name, name) for name in kept.column_names])


def _as_rows(rows: pa.Table) -> pa.Table:
    columns = [
        rows[field.name] if field.name in rows.column_names else _repeat(None, field.type, rows.num_rows)
        for field in ROW_SCHEMA
    ]
    return pa.table(columns, schema=ROW_SCHEMA)
