"""The flip: one compare-and-set of the status row makes a pending generation the active one.

Withdrawals replace the same row, so of a flip and a withdrawal exactly one comes first. `flip_rules.py` says who may.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from switchyard.policies import Rules
from switchyard.swap import flip_rules
from switchyard.swap.history import SwapHistory


def try_flip(history: SwapHistory, swap_id: str, now: datetime, rules: Rules) -> bool:
    """Flip, if this request may do so now. `settle_due` writes the outcome.

    The status row is read before the history: a withdrawal that the history is too old to show has changed the row.
    """
    while True:
        before = history.status_row()
        ledger = history.ledger()
        wanted = ledger.pending
        if wanted is None or not flip_rules.may_flip(ledger, before, swap_id, now, rules):
            return False
        if history.commit_row(before, flip_rules.flipped(before, wanted, now)):
            return True


def withdraw(history: SwapHistory, number: int, reason: str = "") -> bool:
    """Take the right to flip from all requests up to a number; False when that one has flipped or has lost it."""
    while True:
        before = history.status_row()
        after = flip_rules.withdrawn(before, number, reason)
        if after is None:
            return False
        if history.commit_row(before, after):
            return True


def refresh(history: SwapHistory, now: datetime) -> None:
    """Move lastApplied; before anything was active there is none to move."""
    while True:
        before = history.status_row()
        if before.generation is None or history.commit_row(before, replace(before, lastApplied=now)):
            return
