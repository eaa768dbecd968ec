"""Which request may flip, which has lost its right to, and how each is settled. Pure: no I/O, no clock.

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
    """What was last asked for and has not failed."""
    return ledger.pending.target if ledger.pending else status_row.target


def desires_snapshot(ledger: Ledger, status_row: StatusRow) -> bool:
    """Whether what was last asked for is a snapshot of history, and not a stream."""
    return ledger.is_snapshot(ledger.pending.generation if ledger.pending else status_row.generation)


def pending_start(ledger: Ledger) -> str | None:
    """Where the pending swap starts. A later message inherits it, but not a resume: that is bound to its own target."""
    return ledger.pending.start if ledger.pending and ledger.pending.start != "resume" else None


def previous_generation(ledger: Ledger, status_row: StatusRow) -> int | None:
    """The generation that was active before the active one."""
    before = [entry.generation for entry in ledger.flips if entry.generation != status_row.generation]
    return before[-1] if before else None


def find_resumable(ledger: Ledger, status_row: StatusRow, target: Target) -> int | None:
    """The newest stream with these topics and this join that was active once, is not now and was not removed."""
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
    """Whether this request may flip now: it is the newest, proven, in time, and everything before it is settled."""
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
    """Whether the last flip is so recent that the next one has to wait. A time far in the future is a clock's fault."""
    return bool(ledger.flips) and abs(now - ledger.flips[-1].at) < rules.dwell


def is_overdue(request: Request, now: datetime) -> bool:
    return request.deadline is not None and now > request.deadline


def find_stuck(ledger: Ledger, status_row: StatusRow, now: datetime, rules: Rules, seen: SignOfLife) -> Request | None:
    """The pending request whose driver never started, or no longer reports.

    Not with nothing active, because there is nothing to fall back to. Not one that is ready or a snapshot: they only
    wait for their flip, and have their deadline. Until its first report a driver gets the time that every start gets.
    """
    request = ledger.pending
    if request is None or status_row.generation is None or request.generation == status_row.generation:
        return None
    if ledger.has(request.swapId, Event.READY) or ledger.is_snapshot(request.generation):
        return None
    signs = [entry.at for entry in ledger.entries if entry.swapId == request.swapId]
    reported = seen(request.generation)
    has_begun = reported is not None and reported > request.at
    patience = rules.stuck if has_begun else max(rules.stuck, rules.ready_deadline)
    return request if now - max(filter(None, (*signs, reported))) > patience else None


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
    """The row once requests up to a number are withdrawn; None if that one has flipped or was withdrawn before."""
    if status_row.flipped == number or status_row.barred >= number:
        return None
    return replace(status_row, barred=number, barred_because=reason)


def number_to_withdraw(ledger: Ledger, status_row: StatusRow, now: datetime) -> int | None:
    """The newest request that is late or superseded, but not yet withdrawn in the status row."""
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
    """Whether a request asks for what is active: it took back a pending swap before its flip, and needs no flip."""
    return request is ledger.newest and request.generation == status_row.generation


def settlements(
    ledger: Ledger, status_row: StatusRow, now: datetime, reasons: Mapping[str, str] | None = None
) -> list[Entry]:
    """The outcomes that are decided but not written, and the generations that linger because of them.

    They are written in the order of the requests. `reasons` tell why a request failed.
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
    if not reason:
        late = f"not ready by its deadline, {_moment(request.deadline)}; send it again with a longer deadlineSeconds"
        reason = late if is_overdue(request, now) else "it was given up before its flip"
    return request.entry(Event.FAILED, reason)


def _moment(at: datetime | None) -> str:
    return at.isoformat(timespec="seconds") if at else "never"


def _newly_lingering(ledger: Ledger, status_row: StatusRow) -> list[Entry]:
    found = []
    for generation in ledger.generations:
        last = ledger.last_life(generation)
        if generation == status_row.generation or last is None or last.event is not Event.APPLIED:
            continue
        request = ledger.find(last.swapId)
        if request is not None:
            found.append(request.entry(Event.LINGERING, f"replaced by generation {status_row.generation}"))
    return found


def needs_run(ledger: Ledger) -> Request | None:
    """The pending request that needs a run in Airflow, because no driver works for its generation."""
    request = ledger.pending
    if request is None or request.is_hosted or ledger.has(request.swapId, Event.STARTING):
        return None
    if ledger.is_snapshot(request.generation):
        return None
    last = ledger.last_life(request.generation)
    is_alive = last is not None and last.event in (Event.APPLIED, Event.LINGERING)
    return None if is_alive else request


def snapshot_to_flip(ledger: Ledger) -> Request | None:
    """The pending request for a finished snapshot. It has no driver, so the next process that looks makes the flip."""
    request = ledger.pending
    return request if request is not None and ledger.is_finished(request.generation) else None
