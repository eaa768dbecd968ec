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


def join(kind: str, users: Iterable[Event], accounts: Iterable[Event], within_seconds: int | None = None) -> list[Pair]:
    return JOINS[kind](list(users), list(accounts), within_seconds)


def _meet(user: Event, account: Event, within: int | None) -> bool:
    is_near = within is None or abs(user.second - account.second) <= within
    return user.user_id == account.user_id and is_near


def _inner(users: list[Event], accounts: list[Event], within: int | None) -> list[Pair]:
    return [(user, account) for user in users for account in accounts if _meet(user, account, within)]


def _left(users: list[Event], accounts: list[Event], within: int | None) -> list[Pair]:
    unmatched = [user for user in users if not any(_meet(user, account, within) for account in accounts)]
    return _inner(users, accounts, within) + [(user, None) for user in unmatched]


def _natural(users: list[Event], accounts: list[Event], within: int | None) -> list[Pair]:
    def met(user: Event) -> list[Event]:
        return [account for account in accounts if _meet(user, account, within)]

    return [(user, max(met(user), key=lambda a: a.place, default=None)) for user in users]


def _asof(users: list[Event], accounts: list[Event], within: int | None) -> list[Pair]:
    def before(account: Event) -> list[Event]:
        return [user for user in users if _meet(user, account, within) and user.second <= account.second]

    return [(max(before(account), key=lambda u: u.place, default=None), account) for account in accounts]


JOINS: dict[str, Callable[[list[Event], list[Event], int | None], list[Pair]]] = {
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
