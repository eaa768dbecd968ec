"""Take the steps of a swap, each as one transaction on the history. Any process may take, repeat or crash after any.

A request ends in exactly one of the outcomes on the right:

    REQUESTED ─► STARTING ─► READY ─► flip.try_flip() ───────► APPLIED
        │            │         │
        ├────────────┴─────────┴─ a newer request is there ──► SUPERSEDED
        ├────────────┴─────────┴─ its deadline, give_up() ───► FAILED
        └─ what it asks for is active again, and stays ──────► REFRESHED

A command that needs no request is settled at once: REFRESHED, REJECTED, or PLANNED for a dry run. The command for a
snapshot goes from STARTING to PLANNED (finished) or FAILED, and never flips by itself.

A generation, by the newest of its entries:

                  flip             next flip              try_retire()
    (no entry) ─────────► APPLIED ───────────► LINGERING ──────────────► RETIRED
        │                    ▲                     │                        │
        │                    └─── rollback, undo, resume: asked for again ──┤
        │ failed or superseded                                              │ try_remove()
        └─ close_abandoned() ─► RETIRED                                     └───────────► RETIRED twice: removed

APPLIED until another request flips. LINGERING until its time is over and its successor has reported since, or a person
retires it. RETIRED until its keep time is over.

Each step is one loop: read, let the rules decide, commit as the very next version of what was read, or look again. The
history is `swap_history` with the status row; `swap/history_store.py` keeps both in Delta. Nothing here does any other
I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from switchyard.errors import InputError
from switchyard.policies import Rules, Target
from switchyard.swap import flip, flip_rules, retirement_rules
from switchyard.swap.history import (
    SETTLING,
    UNDO_PREFIX,
    Entry,
    Event,
    Ledger,
    Request,
    SignOfLife,
    StatusRow,
    SwapHistory,
    is_snapshot_id,
    next_swap_id,
)

Extra = TypeVar("Extra")


@dataclass(frozen=True)
class OpenCommand:
    """A command that is not decided yet, with the history and the status row as just read."""

    swapId: str
    requestedBy: str
    ledger: Ledger
    status_row: StatusRow

    def settle(
        self,
        event: Event,
        detail: str = "",
        target: Target | None = None,
        start: str | None = None,
        generation: int | None = None,
    ) -> Entry:
        return Entry(self.swapId, event, generation, target, start, self.requestedBy, detail)

    def ask_for(
        self, generation: int, target: Target, start: str, detail: str = "", deadline: datetime | None = None
    ) -> Entry:
        # With nothing active there is nothing to fall back to: the first request has no deadline.
        deadline = None if self.status_row.generation is None else deadline
        return Entry(self.swapId, Event.REQUESTED, generation, target, start, self.requestedBy, detail, deadline)

    def ask_for_snapshot(self, target: Target, start: str, detail: str = "") -> Entry:
        if not is_snapshot_id(self.swapId):
            raise ValueError(f"{self.swapId} is not the id of a backfill")
        return self.ask_for(self.ledger.next_generation, target, start, detail)


def take_command(
    history: SwapHistory, swap_id: str, requested_by: str, decide: Callable[[OpenCommand], tuple[Entry, Extra]]
) -> tuple[Entry, Extra | None] | None:
    """Write the outcome or the request of a command, once; return None if its id is known already.

    `decide` returns the entry, with what else its caller wants to know; an InputError becomes a rejection.
    """
    while True:
        command = OpenCommand(swap_id, requested_by, history.ledger(), history.status_row())
        if command.ledger.is_known(swap_id):
            return None
        extra: Extra | None = None
        try:
            entry, extra = decide(command)
        except InputError as error:
            entry = command.settle(Event.REJECTED, str(error))
        if history.commit_next(command.ledger, [entry]):
            return entry, extra


def ask_once(
    history: SwapHistory,
    swap_id: str,
    requested_by: str,
    generation: int | None,
    target: Target,
    start: str = "latest",
    detail: str = "",
    deadline: datetime | None = None,
) -> Request:
    """Ask for a generation, by default the next one; return the request, also one that was there already."""

    def ask(command: OpenCommand) -> tuple[Entry, None]:
        return command.ask_for(generation or command.ledger.next_generation, target, start, detail, deadline), None

    take_command(history, swap_id, requested_by, ask)
    request = history.ledger().find(swap_id)
    if request is None:
        raise ValueError(f"{swap_id} is known, but not as a request")
    return request


def note(history: SwapHistory, entry: Entry) -> bool:
    """Write an event once. Return False if it is recorded already, or, for an outcome, if the swap has any outcome."""
    while True:
        ledger = history.ledger()
        if ledger.has(entry.swapId, entry.event) or (entry.event in SETTLING and entry.swapId in ledger.outcomes):
            return False
        if history.commit_next(ledger, [entry]):
            return True


def flip_snapshot(history: SwapHistory, now: datetime, rules: Rules) -> bool:
    """Flip to a finished snapshot that was asked for."""
    wanted = flip_rules.snapshot_to_flip(history.ledger())
    if wanted is None:
        return False
    # Ready without a driver: the job proved the rows before it finished.
    note(history, wanted.entry(Event.READY, "it is a finished snapshot"))
    return flip.try_flip(history, wanted.swapId, now, rules)


def settle_due(history: SwapHistory, now: datetime) -> list[Entry]:
    """Withdraw what is late or superseded, write each decided outcome, and LINGERING for what was replaced."""
    number = flip_rules.number_to_withdraw(history.ledger(), history.status_row(), now)
    if number is not None:
        flip.withdraw(history, number)
    written = _settle(history, now, {})
    if any(entry.event is Event.REFRESHED for entry in written):
        flip.refresh(history, now)
    return written


def _settle(history: SwapHistory, now: datetime, reasons: dict[str, str]) -> list[Entry]:
    while True:
        ledger = history.ledger()
        entries = flip_rules.settlements(ledger, history.status_row(), now, reasons)
        if not entries or history.commit_next(ledger, entries):
            return entries


def give_up(history: SwapHistory, swap_id: str, reason: str, now: datetime) -> Entry | None:
    """End a request that has not flipped as FAILED; return its outcome, which may be another one by then."""
    wanted = history.ledger().find(swap_id)
    if wanted is None:
        return None
    if history.ledger().is_open(wanted):
        # The withdrawal carries the reason: another process may write the outcome first.
        flip.withdraw(history, wanted.number, reason)
        _settle(history, now, {swap_id: reason})
    return history.ledger().outcomes.get(swap_id)


def try_retire(
    history: SwapHistory, generation: int, detail: str, now: datetime, rules: Rules, seen: SignOfLife
) -> bool:
    """Write RETIRED for a generation whose linger time is over and that no open request asks for."""
    while True:
        ledger = history.ledger()
        if not retirement_rules.should_retire(ledger, history.status_row(), generation, now, rules, seen):
            return False
        if history.commit_next(ledger, [ledger.life_request(generation).entry(Event.RETIRED, detail)]):
            return True


def retire_by_hand(history: SwapHistory, generation: int, detail: str) -> str | None:
    """Write RETIRED for a lingering generation before its time; return the reason if it cannot be retired."""
    while True:
        ledger = history.ledger()
        refusal = retirement_rules.explain_refusal(ledger, history.status_row(), generation)
        if refusal is not None:
            return refusal
        if history.commit_next(ledger, [ledger.life_request(generation).entry(Event.RETIRED, detail)]):
            return None


def close_abandoned(history: SwapHistory, generation: int, detail: str) -> bool:
    """Write RETIRED for an abandoned generation, after its rows were removed."""
    while True:
        ledger = history.ledger()
        asked = ledger.command_of(generation)
        if asked is None or not retirement_rules.is_abandoned(ledger, generation):
            return False
        if history.commit_next(ledger, [asked.entry(Event.RETIRED, detail)]):
            return True


def try_remove(history: SwapHistory, generation: int, now: datetime, keep: timedelta) -> bool:
    """Retire a generation a second time, for good, when its keep time is over: it cannot be asked for again."""
    # Written before anything is removed: of a removal and a request for the same generation, one comes first.
    detail = "for good: its keep time is over, its rows and its checkpoint go"
    while True:
        ledger = history.ledger()
        asked = ledger.command_of(generation)
        if asked is None or not retirement_rules.may_remove(ledger, history.status_row(), generation, now, keep):
            return False
        if history.commit_next(ledger, [asked.entry(Event.RETIRED, detail)]):
            return True


def undo_flip(
    history: SwapHistory, generation: int, now: datetime, watched_since: datetime, rules: Rules, seen: SignOfLife
) -> Request | None:
    """Ask for the flip back to a lingering generation, if its successor was silent for the probation time."""
    while True:
        ledger, status_row = history.ledger(), history.status_row()
        if not retirement_rules.should_undo(ledger, status_row, generation, now, watched_since, rules, seen):
            return None
        swap_id = next_swap_id(ledger, f"{UNDO_PREFIX}{ledger.flips[-1].swapId}")
        silent = f"generation {status_row.generation} was not heard of for {rules.probation.total_seconds():g} s"
        detail, deadline = f"{silent}; generation {generation} takes over again", now + rules.ready_deadline
        command = OpenCommand(swap_id, "probation", ledger, status_row)
        asked = command.ask_for(generation, ledger.life_request(generation).target, "resume", detail, deadline)
        if history.commit_next(ledger, [asked]):
            return history.ledger().find(swap_id)
