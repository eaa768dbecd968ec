"""Read and write the table `forgotten`. Its rows are marks: records of this person below these positions are forgotten.

Old records of the person still arrive, from Kafka and from the state of a running join. A mark recognizes them by a
salted hash of the user id, and by position: timestamps depend on the clocks of producers.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from switchyard.layout import Layout
from switchyard.offsets import Offsets, from_json, furthest, to_json
from switchyard.records import KEY
from switchyard.tables import store

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Mark:
    number: int
    at: datetime
    userHash: str
    upTo: Offsets
    """For each topic the first positions that are not forgotten."""


@dataclass(frozen=True)
class Marks:
    """Marks in the order of their numbers, all with the same salt."""

    salt: str = ""
    marks: tuple[Mark, ...] = ()

    @property
    def newest(self) -> int:
        return self.marks[-1].number if self.marks else 0

    def up_to(self, number: int) -> Marks:
        # The same object keeps the bounds that it has computed already.
        if number >= self.newest:
            return self
        return Marks(self.salt, tuple(mark for mark in self.marks if mark.number <= number))

    def after(self, number: int) -> Marks:
        return Marks(self.salt, tuple(mark for mark in self.marks if mark.number > number))

    @cached_property
    def _bounds(self) -> dict[str, Offsets]:
        """hash → the first positions that are not forgotten; of several marks of a person the furthest counts"""
        marks_of: dict[str, list[Offsets]] = {}
        for mark in self.marks:
            marks_of.setdefault(mark.userHash, []).append(mark.upTo)
        return {user_hash: furthest(positions) for user_hash, positions in marks_of.items()}

    @cached_property
    def _furthest(self) -> Offsets:
        """For each topic the positions beyond which nothing is forgotten."""
        return furthest(mark.upTo for mark in self.marks)

    @cached_property
    def _bounds_by_topic(self) -> dict[str, dict[str, dict[int, int]]]:
        by_topic: dict[str, dict[str, dict[int, int]]] = {}
        for user_hash, ends in self._bounds.items():
            for topic, bounds in ends.items():
                by_topic.setdefault(topic, {})[user_hash] = bounds
        return by_topic

    def bounds(self, topic: str) -> dict[str, dict[int, int]]:
        """Return hash → partition → the first offset of a topic that is not forgotten."""
        return self._bounds_by_topic.get(topic, {})

    def find_persons(self, user_ids: Iterable[str | None]) -> set[str]:
        """Return those of the ids that have a mark."""
        return {one for one in user_ids if one is not None and hash_user(self.salt, one) in self._bounds}

    def is_forgotten(self, topic: str, rows: pa.Table, user_id: str, partition: str, offset: str) -> Mask:
        """Return, row by row, whether the event at the position in these columns is forgotten; an absent one is not."""
        forgotten: Mask = np.zeros(rows.num_rows, dtype=bool)
        bounds = self.bounds(topic)
        if not bounds or not rows.num_rows:
            return forgotten
        partitions, offsets = (_numbers(rows[name]) for name in (partition, offset))
        ids = rows[user_id].filter(pa.array(_is_below(partitions, offsets, self._furthest[topic])))
        for person in self.find_persons(pc.unique(ids).to_pylist()):
            below = _is_below(partitions, offsets, bounds.get(hash_user(self.salt, person), {}))
            if below.any():
                forgotten |= below & _truths(pc.equal(rows[user_id], person))
        return forgotten


def _is_below(partitions: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any], bounds: Mapping[int, int]) -> Mask:
    below: Mask = np.zeros(len(offsets), dtype=bool)
    for partition, bound in bounds.items():
        below |= (partitions == partition) & (offsets < bound)
    return below


def _numbers(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    # No topic has a partition -1, so an absent event is never forgotten.
    return np.asarray(column.fill_null(-1).to_numpy(zero_copy_only=False))


def _truths(column: pa.ChunkedArray) -> Mask:
    return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False))


def hash_user(salt: str, user_id: str) -> str:
    # Salted: else the hash could be looked up in a list of the hashes of known ids.
    return hashlib.sha256((salt + user_id).encode()).hexdigest()


class MarkReader:
    """Keeps the table open, and reads it again only when it has changed."""

    def __init__(self, layout: Layout) -> None:
        self._table = store.open_table(layout, "forgotten")
        self._read: tuple[int, Marks] = (-1, Marks())

    def marks(self) -> Marks:
        self._table.update_incremental()
        version = int(self._table.version())
        if self._read[0] != version:
            self._read = (version, marks_at(self._table))
        return self._read[1]


def read_marks(layout: Layout) -> Marks:
    return marks_at(store.open_table(layout, "forgotten")) if store.has_table(layout, "forgotten") else Marks()


def marks_at(table: DeltaTable) -> Marks:
    rows = sorted(store.read_snapshot(table, "forgotten").to_pylist(), key=lambda row: row["number"])
    marks = tuple(Mark(row["number"], row["at"], row["userHash"], from_json(row["upTo"])) for row in rows)
    return Marks(rows[0]["salt"] if rows else "", marks)


def add_mark(layout: Layout, user_id: str, up_to: Offsets, found: Mapping[str, int], requested_by: str) -> int:
    """Write the next mark, which every driver carries out from now on; return its number."""
    number = 0

    def take_next(table: DeltaTable) -> store.Change:
        nonlocal number
        before = marks_at(table)
        number = before.newest + 1
        salt = before.salt or secrets.token_hex(16)
        row = {
            "number": number,
            "at": datetime.now(UTC),
            "userHash": hash_user(salt, user_id),
            "salt": salt,
            "upTo": to_json(up_to),
            "found": json.dumps(dict(found)),
            "requestedBy": requested_by,
        }
        return store.Change(rows=[row])

    store.transact(layout, "forgotten", take_next)
    return number


def owner_of(value: str | None) -> str | None:
    """Return the key in the value of a rejected record; None if none can be read."""
    try:
        document = json.loads(value or "", parse_int=str, parse_float=str, parse_constant=str)
        owner = document.get(KEY) if isinstance(document, dict) else None
        # JSON can hold half of a surrogate pair, which cannot be encoded as text.
        return owner if isinstance(owner, str) and owner.encode() is not None else None
    except (ValueError, RecursionError):
        return None
