"""The steps of a swap, each one transaction on the history. Any actor may take any step, crash after it, or repeat it.

A request, once accepted, ends in exactly one of the outcomes on the right:

    REQUESTED ──► STARTING ──► READY ──► try_flip() ─────────────────────────────────► APPLIED
        │             │           │
        └─────────────┴───────────┴────► withdrawn: a newer request ─────────────────► SUPERSEDED
                                         withdrawn: its deadline, its driver, give_up() ► FAILED
                                         what it asks for is active again ────────────► REFRESHED

A command that needs no swap is settled at once: REFRESHED, REJECTED, or PLANNED for a dry run. The command for a
snapshot goes from STARTING to PLANNED (finished) or FAILED, and never flips by itself.

A generation, by the last of its entries:

    (pending) ──► APPLIED: active ──► LINGERING ──► RETIRED ──► RETIRED twice: its rows are removed
        │               ▲                 │            │
        │               └─ a rollback, an undo, or the same message asks for it again
        └── failed or superseded ──► RETIRED, when what it left is removed

It remains active until another request flips; LINGERING until its time is over and its successor was seen at work;
RETIRED until its keep time is over (try_remove).

The history is `swap_history` with the status row; `swap/history_store.py` keeps both in Delta. Nothing here does any
other I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from switchyard.policies import Rules, Target
from switchyard.swap import flip_rules, retirement_rules
from switchyard.swap.history import (
    SETTLING,
    UNDO_PREFIX,
    Entry,
    Event,
    Ledger,
    Request,
    SignOfLife,
    StatusRow,
    is_snapshot_id,
    next_swap_id,
)


class SwapHistory(Protocol):
    def ledger(self) -> Ledger: ...

    def status_row(self) -> StatusRow: ...

    def append(self, decide: Callable[[Ledger], list[Entry]]) -> list[Entry]:
        """Writes what `decide` makes of the newest history, as its next entries; asks again when it has changed."""
        ...

    def change(self, decide: Callable[[StatusRow], StatusRow | None]) -> StatusRow | None:
        """Replaces the status row by what `decide` makes of the newest one; asks again when it has changed."""
        ...


class Retry(Exception):
    """What a decision was based on has changed; the caller looks again."""


def note(history: SwapHistory, entry: Entry) -> bool:
    """Writes an event of a swap once; False when it, or for an outcome any outcome, is there already."""

    def decide(ledger: Ledger) -> list[Entry]:
        if entry.event in SETTLING:
            return [] if entry.swapId in ledger.outcomes else [entry]
        return [] if ledger.has(entry.swapId, entry.event) else [entry]

    return bool(history.append(decide))


def request(
    history: SwapHistory,
    swap_id: str,
    *,
    choose: Callable[[Ledger, StatusRow], tuple[int, Target, str]],
    requested_by: str,
    now: datetime,
    rules: Rules,
    detail: str = "",
    has_deadline: bool = True,
    within: timedelta | None = None,
) -> Request:
    """Accepts a request once and gives it its number. `choose` names the generation, target and start, or raises.

    The deadline is fixed here: `within` from now, or what every swap has. Nothing changes it later.
    """

    def decide(ledger: Ledger) -> list[Entry]:
        if ledger.is_known(swap_id):
            return []
        status_row = history.status_row()
        generation, target, start = choose(ledger, status_row)
        # With nothing to fall back to there is nothing to give up for.
        is_first = status_row.generation is None
        time_allowed = rules.ready_deadline if within is None else within
        deadline = now + time_allowed if has_deadline and not is_first else None
        return [Entry(swap_id, Event.REQUESTED, generation, target, start, requested_by, detail, deadline)]

    history.append(decide)
    accepted = history.ledger().find(swap_id)
    if accepted is None:
        raise Retry(f"{swap_id} is known, but not as a request")
    return accepted


def order_snapshot(
    history: SwapHistory,
    swap_id: str,
    *,
    choose: Callable[[Ledger, StatusRow], Target],
    start: str,
    requested_by: str,
    detail: str,
) -> Request:
    """Accepts the command for a snapshot once and gives it the next generation. It has no deadline: nobody waits."""
    if not is_snapshot_id(swap_id):
        raise ValueError(f"{swap_id} is not the id of a backfill")

    def decide(ledger: Ledger) -> list[Entry]:
        if ledger.is_known(swap_id):
            return []
        target = choose(ledger, history.status_row())
        return [Entry(swap_id, Event.REQUESTED, ledger.next_generation, target, start, requested_by, detail)]

    history.append(decide)
    ordered = [snapshot for snapshot in history.ledger().snapshots.values() if snapshot.swapId == swap_id]
    if not ordered:
        raise Retry(f"{swap_id} is known, but not as a backfill")
    return ordered[0]


def flip_snapshot(history: SwapHistory, now: datetime, rules: Rules) -> bool:
    """The flip to a finished snapshot that was asked for. It was proven when it was finished."""
    wanted = flip_rules.snapshot_to_flip(history.ledger())
    if wanted is None:
        return False
    note(history, wanted.entry(Event.READY, "it is a finished snapshot"))
    return try_flip(history, wanted.swapId, now, rules)


def settle_due(history: SwapHistory, now: datetime) -> list[Entry]:
    """Withdraws what is late or superseded, writes every outcome that is decided, and who lingers because of it."""
    number = flip_rules.number_to_withdraw(history.ledger(), history.status_row(), now)
    if number is not None:
        history.change(lambda status_row: flip_rules.withdraw(status_row, number))
    if not flip_rules.settlements(history.ledger(), history.status_row(), now):
        return []
    written = history.append(lambda ledger: flip_rules.settlements(ledger, history.status_row(), now))
    if any(entry.event is Event.REFRESHED for entry in written):
        refresh(history, now)
    return written


def refresh(history: SwapHistory, now: datetime) -> None:
    """Moves lastApplied; before anything was active there is none to move."""
    history.change(lambda status_row: None if status_row.generation is None else replace(status_row, lastApplied=now))


def try_flip(history: SwapHistory, swap_id: str, now: datetime, rules: Rules) -> bool:
    """The flip, if this request may have it now. The outcome is written by `settle_due`."""

    def decide(status_row: StatusRow) -> StatusRow | None:
        ledger = history.ledger()
        wanted = ledger.pending
        if wanted is None or not flip_rules.may_flip(ledger, status_row, swap_id, now, rules):
            return None
        return flip_rules.flip(status_row, wanted, now)

    return history.change(decide) is not None


def give_up(history: SwapHistory, swap_id: str, reason: str, now: datetime) -> Entry | None:
    """Ends a request that has not flipped as FAILED; returns what became of it in the end.

    The withdrawal carries the reason: another actor may write the outcome first.
    """
    wanted = history.ledger().find(swap_id)
    if wanted is None:
        return None
    if history.ledger().is_open(wanted):
        history.change(lambda status_row: flip_rules.withdraw(status_row, wanted.number, reason))
        history.append(lambda ledger: flip_rules.settlements(ledger, history.status_row(), now, {swap_id: reason}))
    return history.ledger().outcomes.get(swap_id)


def try_retire(
    history: SwapHistory, generation: int, detail: str, now: datetime, rules: Rules, seen: SignOfLife
) -> bool:
    """Writes RETIRED for a generation whose linger time is over and that nobody has asked back."""

    def decide(ledger: Ledger) -> list[Entry]:
        if not retirement_rules.should_retire(ledger, history.status_row(), generation, now, rules, seen):
            return []
        return _end_of_life(ledger, generation, detail)

    return bool(history.append(decide))


def retire_by_hand(history: SwapHistory, generation: int, detail: str) -> str | None:
    """Writes RETIRED for a lingering generation before its time; returns why not, if it cannot be retired."""
    refusal: str | None = None

    def decide(ledger: Ledger) -> list[Entry]:
        nonlocal refusal
        refusal = retirement_rules.explain_refusal(ledger, history.status_row(), generation)
        return [] if refusal else _end_of_life(ledger, generation, detail)

    history.append(decide)
    return refusal


def _end_of_life(ledger: Ledger, generation: int, detail: str) -> list[Entry]:
    last = ledger.last_life(generation)
    wanted = last and ledger.find(last.swapId)
    return [wanted.entry(Event.RETIRED, detail)] if wanted else []


def close_abandoned(history: SwapHistory, generation: int, detail: str) -> bool:
    """Writes RETIRED for a generation that never became active, after what it left was removed."""

    def decide(ledger: Ledger) -> list[Entry]:
        wanted = ledger.command_of(generation)
        if wanted is None or not retirement_rules.is_abandoned(ledger, generation):
            return []
        return [wanted.entry(Event.RETIRED, detail)]

    return bool(history.append(decide))


def try_remove(history: SwapHistory, generation: int, now: datetime, keep: timedelta) -> bool:
    """Retires a generation a second time, for good, when its keep time is over: nobody can ask for it again.

    It is written before anything is removed: of a removal and a request for the same generation, one comes first.
    """

    def decide(ledger: Ledger) -> list[Entry]:
        wanted = ledger.command_of(generation)
        if wanted is None or not retirement_rules.may_remove(ledger, history.status_row(), generation, now, keep):
            return []
        return [wanted.entry(Event.RETIRED, "for good: its keep time is over, its rows and its checkpoint go")]

    return bool(history.append(decide))


def undo_flip(
    history: SwapHistory, generation: int, now: datetime, watched_since: datetime, rules: Rules, seen: SignOfLife
) -> Request | None:
    """A lingering generation asks for the flip back when its successor has not been heard of for too long."""
    asked: list[Entry] = []

    def decide(ledger: Ledger) -> list[Entry]:
        asked.clear()
        status_row = history.status_row()
        if not retirement_rules.should_undo(ledger, status_row, generation, now, watched_since, rules, seen):
            return []
        mine, failed = ledger.request_of(generation), ledger.flips[-1]
        swap_id = next_swap_id(ledger, f"{UNDO_PREFIX}{failed.swapId}")
        if mine is None:
            return []
        silent = f"generation {status_row.generation} was not heard of for {rules.probation.total_seconds():g} s"
        deadline = now + rules.ready_deadline
        detail = f"{silent}; generation {generation} takes over again"
        asked.append(Entry(swap_id, Event.REQUESTED, generation, mine.target, "resume", "probation", detail, deadline))
        return list(asked)

    history.append(decide)
    return history.ledger().find(asked[0].swapId) if asked else None
