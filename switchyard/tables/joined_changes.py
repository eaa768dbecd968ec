"""What one micro-batch changes: pure functions from the batch's rows, as Arrow, to rows to add and rows to revise.

The batch holds its new users, its new accounts, and its new pairs: every (user, account) of the same userId of which at
least one side is new. That is enough to know all changes of `joined`:
- left: a new user without a pair gets a null row; an old user with a pair loses its null row, if it has one;
- inner: the pairs;
- natural: a new user takes the latest account of its pairs; an old user takes it if it is later than the one it has;
- asof: the same for accounts, where only users not after the account count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from switchyard.spec import GenerationSpec
from switchyard.tables.files import pack_positions
from switchyard.tables.schemas import ACCOUNTS, JOINED, REJECTS, USERS

Side = Literal["user", "account"]
Keys = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

ROW_SCHEMA = pa.schema([field for field in JOINED if field.name != "generation"])
BATCH_SCHEMA = pa.schema([("kind", pa.string()), *ROW_SCHEMA, ("value", pa.string()), ("reason", pa.string())])
POSITIONS = [f"{side}{name}" for side in ("user", "account") for name in ("Ts", "Partition", "Offset")]
KINDS = ("user", "account", "pair", "reject", "tombstone")


@dataclass(frozen=True)
class Batch:
    """The rows of one micro-batch by kind, all with the columns of BATCH_SCHEMA."""

    users: pa.Table
    accounts: pa.Table
    pairs: pa.Table
    rejects: pa.Table
    tombstones: int

    @property
    def input_rows(self) -> int:
        counted = (self.users, self.accounts, self.rejects)
        return sum(int(rows.num_rows) for rows in counted) + self.tombstones


@dataclass(frozen=True)
class JoinedChanges:
    """Rows that are new in `joined`, and rows that stand for an older event (`revised`), keyed by `side`.

    With `drop_only` a revised row removes its event's null row; otherwise it takes the place of its event's row if the
    other side's event is later than the one there.
    """

    appended: pa.Table
    revised: pa.Table
    side: Side
    drop_only: bool


def split_batch(rows: pa.Table) -> Batch:
    kinds = {kind: rows.filter(pc.equal(rows["kind"], kind)) for kind in KINDS}
    return Batch(
        users=kinds["user"],
        accounts=kinds["account"],
        pairs=kinds["pair"],
        rejects=kinds["reject"],
        tombstones=kinds["tombstone"].num_rows,
    )


def user_rows(batch: Batch, topic: str) -> pa.Table:
    return _source_rows(batch.users, USERS, "user", topic)


def account_rows(batch: Batch, topic: str) -> pa.Table:
    return _source_rows(batch.accounts, ACCOUNTS, "account", topic)


def reject_rows(batch: Batch, users_topic: str, accounts_topic: str) -> pa.Table:
    """Rejected records of both topics; a record carries the position columns of the side it came from."""
    is_user = pc.is_valid(batch.rejects["userOffset"])
    parts = [
        _source_rows(batch.rejects.filter(is_user), REJECTS, "user", users_topic),
        _source_rows(batch.rejects.filter(pc.invert(is_user)), REJECTS, "account", accounts_topic),
    ]
    return pa.concat_tables(parts)


def _source_rows(rows: pa.Table, schema: pa.Schema, side: Side, topic: str) -> pa.Table:
    renamed = {"ts": f"{side}Ts", "partition": f"{side}Partition", "offset": f"{side}Offset"}
    fields = [field for field in schema if field.name != "generation"]
    columns = [
        pa.repeat(pa.scalar(topic), rows.num_rows)
        if field.name == "topic"
        else rows[renamed.get(field.name, field.name)]
        for field in fields
    ]
    return pa.table(columns, schema=pa.schema(fields))


def joined_changes(batch: Batch, join_type: str) -> JoinedChanges:
    pairs = batch.pairs.select(ROW_SCHEMA.names)
    if join_type == "inner":
        return JoinedChanges(pairs, ROW_SCHEMA.empty_table(), "user", drop_only=True)
    if join_type == "left":
        return _left_changes(batch.users, pairs)
    if join_type == "natural":
        return _latest_changes(batch.users, pairs, "user")
    if join_type == "asof":
        return _latest_changes(batch.accounts, pairs, "account")
    raise ValueError(f"unknown join type {join_type!r}")


def _left_changes(users: pa.Table, pairs: pa.Table) -> JoinedChanges:
    new, paired = keys_of(users, "user"), keys_of(pairs, "user")
    unmatched = users.filter(pa.array(~np.isin(new, paired))).select(ROW_SCHEMA.names)
    old, first = np.unique(paired, return_index=True)
    revised = pairs.take(pa.array(first[~np.isin(old, new)]))
    return JoinedChanges(pa.concat_tables([pairs, unmatched]), revised, "user", drop_only=True)


def _latest_changes(events: pa.Table, pairs: pa.Table, side: Side) -> JoinedChanges:
    """One row for each event of `side`, with the latest event of the other side among its pairs."""
    best = keep_latest(pairs, side)
    new, paired = keys_of(events, side), keys_of(best, side)
    unmatched = events.filter(pa.array(~np.isin(new, paired))).select(ROW_SCHEMA.names)
    is_new = np.isin(paired, new)
    appended = pa.concat_tables([best.filter(pa.array(is_new)), unmatched])
    return JoinedChanges(appended, best.filter(pa.array(~is_new)), side, drop_only=False)


def keys_of(rows: pa.Table, side: Side) -> Keys:
    return pack_positions(rows[f"{side}Partition"], rows[f"{side}Offset"])


def other(side: Side) -> Side:
    return "account" if side == "user" else "user"


def leading_side(join_type: str) -> Side:
    """The side whose events each row of `joined` has exactly one of."""
    return "account" if join_type == "asof" else "user"


def topic_of(spec: GenerationSpec, side: Side) -> str:
    return spec.usersTopic if side == "user" else spec.accountsTopic


def keep_latest(pairs: pa.Table, side: Side) -> pa.Table:
    """Of each event of `side` the pair whose other event is the latest."""
    if pairs.num_rows == 0:
        return pairs
    late = other(side)
    names = (f"{side}Partition", f"{side}Offset", f"{late}Ts", f"{late}Partition", f"{late}Offset")
    ordered = pairs.take(pc.sort_indices(pairs, sort_keys=[(name, "ascending") for name in names]))
    keys = keys_of(ordered, side)
    is_last = np.append(keys[1:] != keys[:-1], True)
    return ordered.filter(pa.array(is_last))


@dataclass(frozen=True)
class Rewrite:
    """What becomes of rows of `joined`: those that stay in their file and those that take others' places."""

    kept: pa.Table
    replacing: pa.Table


def revise_rows(existing: pa.Table, changes: JoinedChanges) -> Rewrite | None:
    """Applies revised rows to rows of a file; None when these stay as they are."""
    goes, row_of = find_revised(existing, changes)
    if not goes.any():
        return None
    replacing = changes.revised.slice(0, 0) if changes.drop_only else changes.revised.take(pa.array(row_of[goes]))
    return Rewrite(kept=existing.filter(pa.array(~goes)), replacing=replacing)


def find_revised(existing: pa.Table, changes: JoinedChanges) -> tuple[Mask, Keys]:
    """Which rows of a file lose their place, and the revised row for each. Looks at positions and times only."""
    wanted = keys_of(changes.revised, changes.side)
    order = np.argsort(wanted)
    present = _present_keys(existing, changes.side)
    at = np.searchsorted(wanted[order], present)
    at[at == len(wanted)] = 0
    row_of = order[at]
    hit = wanted[row_of] == present
    if changes.drop_only:
        return hit & existing["accountOffset"].is_null().to_numpy(zero_copy_only=False), row_of
    candidates = changes.revised.select(POSITIONS).take(pa.array(row_of))
    return hit & _is_later(candidates, existing, other(changes.side)), row_of


def _present_keys(existing: pa.Table, side: Side) -> Keys:
    """Keys of the rows of a file; rows without an event of that side get a key that matches nothing."""
    missing = existing[f"{side}Offset"].is_null().to_numpy(zero_copy_only=False)
    keys = pack_positions(existing[f"{side}Partition"].fill_null(0), existing[f"{side}Offset"].fill_null(0))
    return np.where(missing, -1, keys)


def _is_later(rows: pa.Table, than: pa.Table, side: Side) -> Mask:
    """Row by row: whether the event of `side` in `rows` is later than the one in `than`, which may be missing."""
    later = than[f"{side}Offset"].is_null().to_numpy(zero_copy_only=False).copy()
    undecided = ~later
    for name, kind in ((f"{side}Ts", pa.int64()), (f"{side}Partition", None), (f"{side}Offset", None)):
        mine, theirs = (_numbers(table[name], kind) for table in (rows, than))
        later |= undecided & (mine > theirs)
        undecided &= mine == theirs
    return np.asarray(later)


def _numbers(column: pa.ChunkedArray, kind: pa.DataType | None) -> np.ndarray[Any, Any]:
    values = column.cast(kind) if kind is not None else column
    return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False))
