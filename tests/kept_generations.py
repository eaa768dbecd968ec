"""Kept generations in real tables: how a test makes some, and what it asks of them."""

from __future__ import annotations

from switchyard.layout import BIG_TABLES, Layout, attempt_app_id
from switchyard.policies import Target
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from tests.histories import activate, make_ready

JOINS = ("left", "inner", "natural", "asof")


def make_kept(history: HistoryStore) -> None:
    """Make four generations active one after the other, and a fifth that waits for its flip."""
    for number in range(1, 6):
        step = activate if number < 5 else make_ready
        step(history, f"s-{number}", Target("users", "accounts", JOINS[number % 4]), number)


def lingering(history: HistoryStore) -> list[int | None]:
    return [entry.generation for entry in history.ledger().lingering]


def attempts(layout: Layout, generation: int) -> set[int | None]:
    return {store.open_table(layout, name).transaction_version(attempt_app_id(generation)) for name in BIG_TABLES}
