"""The flip: one compare-and-set of the status row makes a pending generation the active one.

Withdrawals replace the same row, so of a flip and a withdrawal exactly one comes first. `flip_rules.py` decides.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from switchyard.policies import Rules
from switchyard.swap import flip_rules
from switchyard.swap.history import SwapHistory


def try_flip(history: SwapHistory, swap_id: str, now: datetime, rules: Rules) -> bool:
    """Flip, if this request may do so now. `settle_due` writes the outcome."""
    while True:
        # The row before the history: then a withdrawal that the history does not show yet makes the commit fail.
        before = history.status_row()
        ledger = history.ledger()
        wanted = ledger.pending
        if wanted is None or not flip_rules.may_flip(ledger, before, swap_id, now, rules):
            return False
        if history.commit_row(before, flip_rules.flipped(before, wanted, now)):
            return True


def withdraw(history: SwapHistory, number: int, reason: str = "") -> bool:
    """Bar all requests up to a number from flipping; return False if that one has flipped or is barred already."""
    while True:
        before = history.status_row()
        after = flip_rules.withdrawn(before, number, reason)
        if after is None:
            return False
        if history.commit_row(before, after):
            return True


def refresh(history: SwapHistory, now: datetime) -> None:
    """Set lastApplied, if a generation is active."""
    while True:
        before = history.status_row()
        if before.generation is None or history.commit_row(before, replace(before, lastApplied=now)):
            return
