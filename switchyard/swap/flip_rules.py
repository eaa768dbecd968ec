"""Decide which request may flip, which no longer may, and how each is settled. Pure: no I/O, no clock.

Two markers are committed with the status row and decide which request may still flip:

- `flipped`: the number of the request that made the active generation active;
- `barred`: requests up to this number can no longer flip, because a newer one, a deadline or a failure came first.

A flip needs `barred < number`, a withdrawal needs `flipped != number`, and both are compare-and-sets of the same row:
of the two exactly one happens. A deadline belongs to a request, so no timer outlives what it was set for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from switchyard.policies import Rules, Target
from switchyard.swap.history import Entry, Event, Ledger, Request, SignOfLife, StatusRow


def desired(ledger: Ledger, status_row: StatusRow) -> Target | None:
    """Return what was last asked for and has not failed."""
    return ledger.pending.target if ledger.pending else status_row.target


def desires_snapshot(ledger: Ledger, status_row: StatusRow) -> bool:
    return ledger.is_snapshot(ledger.pending.generation if ledger.pending else status_row.generation)


def pending_start(ledger: Ledger) -> str | None:
    """Return the start that a later message inherits; not `resume`, which means the target of the pending swap."""
    return ledger.pending.start if ledger.pending and ledger.pending.start != "resume" else None


def previous_generation(ledger: Ledger, status_row: StatusRow) -> int | None:
    before = [entry.generation for entry in ledger.flips if entry.generation != status_row.generation]
    return before[-1] if before else None


def find_resumable(ledger: Ledger, status_row: StatusRow, target: Target) -> int | None:
    """Return the newest stream of this target that was active once, is not now and was not removed."""
    candidates = [
        generation
        for generation in ledger.generations
        if generation != status_row.generation
        and not ledger.is_snapshot(generation)
        and not ledger.is_removed(generation)
        and ledger.was_active(generation)
        and ledger.requests_of(generation)[0].target == target
    ]
    return candidates[-1] if candidates else None


def may_flip(ledger: Ledger, status_row: StatusRow, swap_id: str, now: datetime, rules: Rules) -> bool:
    """Return whether this request may flip: it is the newest, ready and in time, and all earlier ones are settled."""
    request = ledger.pending
    if request is None or request.swapId != swap_id or request.generation == status_row.generation:
        return False
    if request.number <= status_row.barred or is_overdue(request, now):
        return False
    # `flipped` must not move on before the flip that it names is in the history as APPLIED.
    if any(ledger.is_open(earlier) for earlier in ledger.requests[:-1]):
        return False
    if ledger.is_snapshot(request.generation):
        if not ledger.is_finished(request.generation):
            return False
    elif ledger.has_ended(request.generation) and not ledger.has(swap_id, Event.STARTING):
        return False
    return ledger.has(swap_id, Event.READY) and (request.is_undo or not is_dwelling(ledger, now, rules))


def is_dwelling(ledger: Ledger, now: datetime, rules: Rules) -> bool:
    """Return whether the next flip has to wait because the last one is too recent."""
    # abs(): a flip far in the future was written by a wrong clock, and must not hold up all others.
    return bool(ledger.flips) and abs(now - ledger.flips[-1].at) < rules.dwell


def is_overdue(request: Request, now: datetime) -> bool:
    return request.deadline is not None and now > request.deadline


def find_stuck(ledger: Ledger, status_row: StatusRow, now: datetime, rules: Rules, seen: SignOfLife) -> Request | None:
    """Return the pending request, if its driver never started or no longer reports."""
    request = ledger.pending
    # With nothing active there is nothing to fall back to, so keep trying.
    if request is None or status_row.generation is None or request.generation == status_row.generation:
        return None
    # A request that is ready, or for a snapshot, only waits for its flip; its deadline ends that.
    if ledger.has(request.swapId, Event.READY) or ledger.is_snapshot(request.generation):
        return None
    signs = [entry.at for entry in ledger.entries if entry.swapId == request.swapId]
    reported = seen(request.generation)
    has_begun = reported is not None and reported > request.at
    allowed = rules.stuck if has_begun else max(rules.stuck, rules.ready_deadline)
    return request if now - max(filter(None, (*signs, reported))) > allowed else None


def flipped(status_row: StatusRow, request: Request, now: datetime) -> StatusRow:
    return replace(
        status_row,
        generation=request.generation,
        target=request.target,
        lastApplied=now,
        epoch=status_row.epoch + 1,
        flipped=request.number,
    )


def withdrawn(status_row: StatusRow, number: int, reason: str = "") -> StatusRow | None:
    """Return the row with requests up to a number withdrawn; None if that one has flipped or was withdrawn before."""
    if status_row.flipped == number or status_row.barred >= number:
        return None
    return replace(status_row, barred=number, barred_because=reason)


def number_to_withdraw(ledger: Ledger, status_row: StatusRow, now: datetime) -> int | None:
    """Return the number of the newest request that is late or superseded, and not withdrawn in the status row yet."""
    newest = ledger.newest
    late = [
        request.number
        for request in ledger.open_requests
        if request.number != status_row.flipped
        and request.number > status_row.barred
        and (request is not newest or is_overdue(request, now))
        and not _is_there_already(ledger, status_row, request)
    ]
    return max(late, default=None)


def _is_there_already(ledger: Ledger, status_row: StatusRow, request: Request) -> bool:
    """Return whether a request asks for what is active: it has superseded a pending swap, and needs no flip."""
    return request is ledger.newest and request.generation == status_row.generation


def settlements(
    ledger: Ledger, status_row: StatusRow, now: datetime, reasons: Mapping[str, str] | None = None
) -> list[Entry]:
    """Return the outcomes that are decided but not written, in the order of the requests, and LINGERING entries.

    `reasons` tell why a request failed, by its swap id.
    """
    found = []
    for request in ledger.open_requests:
        outcome = _outcome(ledger, status_row, request, now, (reasons or {}).get(request.swapId))
        if outcome is None:
            break
        found.append(outcome)
    return found + _newly_lingering(ledger, status_row)


def _outcome(
    ledger: Ledger, status_row: StatusRow, request: Request, now: datetime, reason: str | None
) -> Entry | None:
    if request.number == status_row.flipped:
        return request.entry(Event.APPLIED, f"generation {request.generation} is active")
    newest = ledger.newest
    if newest is not None and request is not newest:
        if request.number > status_row.barred:
            return None
        return request.entry(Event.SUPERSEDED, f"superseded by {newest.swapId} before its flip")
    if _is_there_already(ledger, status_row, request):
        return request.entry(Event.REFRESHED, f"generation {request.generation} is active and stays")
    if request.number > status_row.barred:
        return None
    reason = reason or (status_row.barred_because if status_row.barred == request.number else "")
    if not reason and request.deadline is not None and is_overdue(request, now):
        moment = request.deadline.isoformat(timespec="seconds")
        reason = f"not ready by its deadline, {moment}; send it again with a longer deadlineSeconds"
    return request.entry(Event.FAILED, reason or "it was given up before its flip")


def _newly_lingering(ledger: Ledger, status_row: StatusRow) -> list[Entry]:
    lives = [ledger.last_life(generation) for generation in ledger.generations if generation != status_row.generation]
    replaced = [ledger.find(life.swapId) for life in lives if life and life.event is Event.APPLIED]
    detail = f"replaced by generation {status_row.generation}"
    return [request.entry(Event.LINGERING, detail) for request in replaced if request]


def needs_run(ledger: Ledger) -> Request | None:
    """Return the pending request, if it needs a run in Airflow because no driver works for its generation."""
    request = ledger.pending
    if request is None or request.is_hosted or ledger.has(request.swapId, Event.STARTING):
        return None
    if ledger.is_snapshot(request.generation):
        return None
    last = ledger.last_life(request.generation)
    is_alive = last is not None and last.event in (Event.APPLIED, Event.LINGERING)
    return None if is_alive else request


def snapshot_to_flip(ledger: Ledger) -> Request | None:
    """Return the pending request for a finished snapshot. No driver flips it, so any process that looks does."""
    request = ledger.pending
    return request if request is not None and ledger.is_finished(request.generation) else None
