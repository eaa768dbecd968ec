"""Requests, step by step, and a swap history in a state without the steps that lead there."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from switchyard.layout import Layout
from switchyard.policies import Rules, Target
from switchyard.swap import flip, transitions
from switchyard.swap.history import Entry, Event, Request, StatusRow
from switchyard.swap.history_store import HistoryStore
from switchyard.tables.progress import Progress
from tests.specs import TARGET

AT_ONCE = Rules(dwell=timedelta())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ask(
    history: HistoryStore,
    swap_id: str,
    target: Target = TARGET,
    generation: int | None = None,
    now: datetime | None = None,
) -> Request:
    """Ask for a generation, by default the next one, with the usual deadline."""
    deadline = (now or datetime.now(UTC)) + AT_ONCE.ready_deadline
    return transitions.ask_once(history, swap_id, "test", generation, target, deadline=deadline)


def make_ready(
    history: HistoryStore,
    swap_id: str,
    target: Target = TARGET,
    generation: int | None = None,
    now: datetime | None = None,
) -> Request:
    request = ask(history, swap_id, target, generation, now)
    for event in (Event.STARTING, Event.READY):
        transitions.note(history, request.entry(event))
    return request


def activate(
    history: HistoryStore,
    swap_id: str,
    target: Target = TARGET,
    generation: int | None = None,
    now: datetime | None = None,
    rules: Rules = AT_ONCE,
) -> Request:
    """Ask for a generation, make it ready and flip to it."""
    request = make_ready(history, swap_id, target, generation, now)
    moment = now or datetime.now(UTC)
    assert flip.try_flip(history, swap_id, moment, rules)
    transitions.settle_due(history, moment)
    return request


def set_row(history: HistoryStore, status_row: StatusRow) -> StatusRow:
    assert history.commit_row(history.status_row(), status_row)
    return status_row


def write(history: HistoryStore, *entries: Entry) -> list[Entry]:
    """Returns the entries as they were written."""
    assert history.commit_next(history.ledger(), entries)
    return list(history.ledger().entries[-len(entries) :])


def make_active(layout: Layout, generation: int = 1) -> None:
    history = HistoryStore(layout)
    set_row(history, replace(history.status_row(), generation=generation, target=TARGET, lastApplied=NOW))


def progress_row(**changes: object) -> Progress:
    row = Progress(1, 1, 0, NOW, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, None, None)
    return replace(row, **changes)  # type: ignore[arg-type]
