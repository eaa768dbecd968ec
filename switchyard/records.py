"""Declare the records that are joined: two sides with their key and fields, and what each join makes of them.

Every module that needs a column of a record or of `joined`, or a rule of a join, derives it from here. This is data
only, and imports nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Columns = dict[str, str]
"""Name → type in the words of Spark, in the order of the table."""

POSITION: Columns = {"ts": "timestamp", "partition": "int", "offset": "long"}
"""When and where a record was in Kafka. Of several events the latest one is the greatest in this order."""
PLACE = ["partition", "offset"]
"""What tells the events of one topic apart."""


@dataclass(frozen=True)
class Field:
    name: str
    type: Literal["string", "long", "double"]
    holds_addresses: bool = False
    """E-mail addresses, which not every viewer may see."""
    is_repeated: bool = True
    """Whether many records share a value, so that a file stores it once, in a dictionary."""


@dataclass(frozen=True)
class Side:
    """One of the two kinds of records."""

    plural: str
    """Names the table of its events."""
    singular: str
    """Names the kind of its events, and begins the names of their positions in `joined`."""
    key: str
    """The field by which the sides are joined: a string; a number in its place is taken as its text."""
    fields: tuple[Field, ...]

    @cached_property
    def columns(self) -> Columns:
        return {field.name: field.type for field in self.fields}

    @cached_property
    def values(self) -> Columns:
        """The fields without the key."""
        return {name: kind for name, kind in self.columns.items() if name != self.key}

    @cached_property
    def position(self) -> dict[str, str]:
        """Column of the side's table → column of `joined`."""
        return {name: f"{self.singular}{name.capitalize()}" for name in POSITION}

    @property
    def ts(self) -> str:
        return self.position["ts"]

    @property
    def offset(self) -> str:
        """Null in a row of `joined` that has no event of this side."""
        return self.position["offset"]

    @cached_property
    def place(self) -> list[str]:
        """What tells its events apart in `joined`."""
        return [self.position[name] for name in PLACE]

    @property
    def other(self) -> Side:
        return RIGHT if self == LEFT else LEFT

    @property
    def own_key(self) -> str:
        """A name for the key in a frame that has the columns of both sides."""
        return f"{self.singular}{self.key[0].upper()}{self.key[1:]}"


LEFT = Side(
    "users",
    "user",
    key="userId",
    fields=(
        Field("userId", "string", is_repeated=False),
        Field("name", "string"),
        Field("email", "string", holds_addresses=True, is_repeated=False),
        Field("age", "long"),
    ),
)
RIGHT = Side(
    "accounts",
    "account",
    key="userId",
    fields=(
        Field("userId", "string", is_repeated=False),
        Field("accountType", "string"),
        Field("balance", "double", is_repeated=False),
    ),
)
SIDES = (LEFT, RIGHT)

KEY = LEFT.key
"""The key in a row of `joined`."""
POSITIONS = [column for side in SIDES for column in side.position.values()]
PLACES = [column for side in SIDES for column in side.place]
"""What tells the rows of `joined` apart."""
JOINED: Columns = {
    **LEFT.columns,
    **RIGHT.values,
    **{side.position[name]: kind for side in SIDES for name, kind in POSITION.items()},
}
BATCH: Columns = {"kind": "string", **JOINED, "value": "string", "reason": "string"}
"""A micro-batch: events of both sides, pairs, rejects and tombstones, told apart by their kind."""


@dataclass(frozen=True)
class JoinRule:
    """What a join makes of the pairs of a key. `joins.py` defines the joins separately, and tests compare the two."""

    leading: Side
    """Each row of `joined` has an event of this side, by whose place it is found again."""
    keeps_unmatched: bool
    """Whether an event of the leading side without a pair has a row, with nulls"""
    takes_latest: bool = False
    """Whether each event of the leading side has one row only, with the latest event of the other side"""
    looks_back: bool = False
    """Whether an event meets only those of the other side that are not after it"""


JOIN_RULES = {
    "left": JoinRule(LEFT, keeps_unmatched=True),
    "inner": JoinRule(LEFT, keeps_unmatched=False),
    "natural": JoinRule(LEFT, keeps_unmatched=True, takes_latest=True),
    "asof": JoinRule(RIGHT, keeps_unmatched=True, takes_latest=True, looks_back=True),
}
