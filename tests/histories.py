"""Puts a swap history into a state without the steps that lead there."""

from __future__ import annotations

from switchyard.swap.history import Entry, StatusRow
from switchyard.swap.history_store import HistoryStore


def set_row(history: HistoryStore, status_row: StatusRow) -> StatusRow:
    assert history.commit_row(history.status_row(), status_row)
    return status_row


def write(history: HistoryStore, *entries: Entry) -> list[Entry]:
    """Returns the entries as they were written."""
    assert history.commit_next(history.ledger(), entries)
    return list(history.ledger().entries[-len(entries) :])
