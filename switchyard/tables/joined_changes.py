"""Work out what one micro-batch changes: pure functions from its rows, as Arrow, to rows to add and rows to revise.

The batch holds its new events of both sides, and its new pairs: every two events of the same key of which at least one
is new. That is enough to know all changes of `joined`. By the rule of the join (`JOIN_RULES`):
- a new event of the leading side gets its pairs, or the latest of them, or without any a row with nulls;
- an old event of the leading side with new pairs gets these too, and its row with nulls goes; or it takes the latest of
  them, if that is later than what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from switchyard.records import BATCH, JOIN_RULES, LEFT, POSITIONS, RIGHT, SIDES, JoinRule, Side
from switchyard.spec import GenerationSpec
from switchyard.tables.files import pack_positions
from switchyard.tables.schemas import FILE_SCHEMAS, to_arrow

Keys = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

ROW_SCHEMA = FILE_SCHEMAS["joined"]
BATCH_SCHEMA = pa.schema(to_arrow(BATCH))


@dataclass(frozen=True)
class Batch:
    """The rows of one micro-batch by kind, all with the columns of BATCH_SCHEMA."""

    events: Mapping[Side, pa.Table]
    pairs: pa.Table
    rejects: pa.Table
    tombstones: int

    @property
    def input_rows(self) -> int:
        return sum(int(rows.num_rows) for rows in (*self.events.values(), self.rejects)) + self.tombstones


@dataclass(frozen=True)
class JoinedChanges:
    """Rows that are new in `joined`, and rows that stand for an older event of the leading side (`revised`).

    Where a join takes the latest pair only, a revised row takes the place of its event's row if its other event is
    later than the one there. Otherwise it removes its event's row with nulls.
    """

    appended: pa.Table
    revised: pa.Table
    rule: JoinRule


def split_batch(rows: pa.Table) -> Batch:
    def of_kind(kind: str) -> pa.Table:
        return rows.filter(pc.equal(rows["kind"], kind))

    return Batch(
        events={side: of_kind(side.singular) for side in SIDES},
        pairs=of_kind("pair"),
        rejects=of_kind("reject"),
        tombstones=of_kind("tombstone").num_rows,
    )


def event_rows(batch: Batch, side: Side, topic: str) -> pa.Table:
    return _source_rows(batch.events[side], FILE_SCHEMAS[side.plural], side, topic)


def reject_rows(batch: Batch, spec: GenerationSpec) -> pa.Table:
    # A record has its position in the columns of the side that it came from.
    is_left = pc.is_valid(batch.rejects[LEFT.offset])
    parts = [
        _source_rows(batch.rejects.filter(mask), FILE_SCHEMAS["rejects"], side, spec.topic_of(side))
        for side, mask in ((LEFT, is_left), (RIGHT, pc.invert(is_left)))
    ]
    return pa.concat_tables(parts)


def _source_rows(rows: pa.Table, schema: pa.Schema, side: Side, topic: str) -> pa.Table:
    columns = [
        pa.repeat(pa.scalar(topic), rows.num_rows) if name == "topic" else rows[side.position.get(name, name)]
        for name in schema.names
    ]
    return pa.table(columns, schema=schema)


def joined_changes(batch: Batch, join_type: str) -> JoinedChanges:
    rule, pairs = JOIN_RULES[join_type], batch.pairs.select(ROW_SCHEMA.names)
    if not rule.keeps_unmatched:
        return JoinedChanges(pairs, ROW_SCHEMA.empty_table(), rule)
    if rule.takes_latest:
        pairs = keep_latest(pairs, rule.leading)
    events = batch.events[rule.leading]
    new, paired = keys_of(events, rule.leading), keys_of(pairs, rule.leading)
    unmatched = events.filter(pa.array(~np.isin(new, paired))).select(ROW_SCHEMA.names)
    old, first = np.unique(paired, return_index=True)
    revised = pairs.take(pa.array(first[~np.isin(old, new)]))
    appended = pairs.filter(pa.array(np.isin(paired, new))) if rule.takes_latest else pairs
    return JoinedChanges(pa.concat_tables([appended, unmatched]), revised, rule)


def keys_of(rows: pa.Table, side: Side) -> Keys:
    return pack_positions(*(rows[name] for name in side.place))


def keep_latest(pairs: pa.Table, side: Side) -> pa.Table:
    """Keep of each event of `side` the pair whose other event is the latest."""
    if pairs.num_rows == 0:
        return pairs
    names = (*side.place, *side.other.position.values())
    ordered = pairs.take(pc.sort_indices(pairs, sort_keys=[(name, "ascending") for name in names]))
    keys = keys_of(ordered, side)
    is_last = np.append(keys[1:] != keys[:-1], True)
    return ordered.filter(pa.array(is_last))


@dataclass(frozen=True)
class Rewrite:
    """The rows of a file that stay, and the rows that replace others."""

    kept: pa.Table
    replacing: pa.Table


def revise_rows(existing: pa.Table, changes: JoinedChanges) -> Rewrite | None:
    """Apply revised rows to rows of a file; return None if these stay as they are."""
    goes, row_of = find_revised(existing, changes)
    if not goes.any():
        return None
    found = row_of[goes] if changes.rule.takes_latest else row_of[:0]
    replacing = changes.revised.take(pa.array(found))
    return Rewrite(kept=existing.filter(pa.array(~goes)), replacing=replacing)


def find_revised(existing: pa.Table, changes: JoinedChanges) -> tuple[Mask, Keys]:
    """Find the rows of a file that are replaced or removed, and the revised row for each, by positions alone."""
    side = changes.rule.leading
    wanted = keys_of(changes.revised, side)
    order = np.argsort(wanted)
    present = _present_keys(existing, side)
    at = np.searchsorted(wanted[order], present)
    at[at == len(wanted)] = 0
    row_of = order[at]
    hit = wanted[row_of] == present
    if not changes.rule.takes_latest:
        return hit & _is_missing(existing, side.other), row_of
    candidates = changes.revised.select(POSITIONS).take(pa.array(row_of))
    return hit & _is_later(candidates, existing, side.other), row_of


def _present_keys(existing: pa.Table, side: Side) -> Keys:
    """Return the keys of the rows of a file; rows without an event of that side get a key that matches nothing."""
    keys = pack_positions(*(existing[name].fill_null(0) for name in side.place))
    return np.where(_is_missing(existing, side), -1, keys)


def _is_missing(rows: pa.Table, side: Side) -> Mask:
    return np.asarray(rows[side.offset].is_null().to_numpy(zero_copy_only=False))


def _is_later(rows: pa.Table, than: pa.Table, side: Side) -> Mask:
    """Return, row by row, whether the event of `side` in `rows` is later than the one in `than`, if there is one."""
    later = _is_missing(than, side).copy()
    undecided = ~later
    for name in side.position.values():
        mine, theirs = (_numbers(table[name]) for table in (rows, than))
        later |= undecided & (mine > theirs)
        undecided &= mine == theirs
    return later


def _numbers(column: pa.ChunkedArray) -> Keys:
    return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
