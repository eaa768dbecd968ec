"""Kept generations in real tables: how a test makes some, and what it asks of them."""

from __future__ import annotations

from datetime import UTC, datetime

from switchyard.layout import BIG_TABLES, Layout, attempt_app_id
from switchyard.policies import Rules, Target
from switchyard.swap import transitions
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store

JOINS = ("left", "inner", "natural", "asof")


def ask(history: HistoryStore, number: int) -> None:
    target, deadline = Target("users", "accounts", JOINS[number % 4]), datetime.now(UTC) + Rules().ready_deadline
    asked = transitions.ask_once(history, f"s-{number}", "test", number, target, deadline=deadline)
    for event in (Event.STARTING, Event.READY):
        transitions.note(history, asked.entry(event))


def lingering(history: HistoryStore) -> list[int | None]:
    return [entry.generation for entry in history.ledger().lingering]


def attempts(layout: Layout, generation: int) -> set[int | None]:
    return {store.open_table(layout, name).transaction_version(attempt_app_id(generation)) for name in BIG_TABLES}
