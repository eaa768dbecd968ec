"""The contract of the four joins in plain Python: small, slow and independent of the library's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, order=True)
class Event:
    """One record of a topic; `place` orders the events of one side."""

    side: str
    user_id: str
    second: int
    partition: int
    offset: int

    @property
    def place(self) -> tuple[int, int, int]:
        return self.second, self.partition, self.offset

    @property
    def ts(self) -> datetime:
        return EPOCH + timedelta(seconds=self.second)

    @property
    def fields(self) -> dict[str, Any]:
        if self.side == "user":
            return {"name": f"name-{self.offset}", "email": f"{self.user_id}@x", "age": self.offset}
        return {"accountType": f"type-{self.offset}", "balance": self.offset / 2}


Pair = tuple[Event | None, Event | None]


def join(kind: str, users: Iterable[Event], accounts: Iterable[Event]) -> list[Pair]:
    return JOINS[kind](list(users), list(accounts))


def _inner(users: list[Event], accounts: list[Event]) -> list[Pair]:
    return [(user, account) for user in users for account in accounts if user.user_id == account.user_id]


def _left(users: list[Event], accounts: list[Event]) -> list[Pair]:
    known = {account.user_id for account in accounts}
    return _inner(users, accounts) + [(user, None) for user in users if user.user_id not in known]


def _natural(users: list[Event], accounts: list[Event]) -> list[Pair]:
    return [
        (user, max((a for a in accounts if a.user_id == user.user_id), key=lambda a: a.place, default=None))
        for user in users
    ]


def _asof(users: list[Event], accounts: list[Event]) -> list[Pair]:
    def before(account: Event) -> list[Event]:
        return [u for u in users if u.user_id == account.user_id and u.second <= account.second]

    return [(max(before(account), key=lambda u: u.place, default=None), account) for account in accounts]


JOINS: dict[str, Callable[[list[Event], list[Event]], list[Pair]]] = {
    "left": _left,
    "inner": _inner,
    "natural": _natural,
    "asof": _asof,
}


def row_of(pair: Pair) -> dict[str, Any]:
    """A pair as a row of `joined`, without the generation."""
    user, account = pair
    row: dict[str, Any] = {"userId": (user or account).user_id}  # type: ignore[union-attr]
    for side, event, names in (
        ("user", user, ("name", "email", "age")),
        ("account", account, ("accountType", "balance")),
    ):
        row |= {name: event.fields[name] if event else None for name in names}
        row[f"{side}Ts"] = event.ts if event else None
        row[f"{side}Partition"] = event.partition if event else None
        row[f"{side}Offset"] = event.offset if event else None
    return row


def sort_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in an order that only depends on their contents, for comparing as a multiset."""
    return sorted(rows, key=lambda row: sorted((name, str(value)) for name, value in row.items()))
