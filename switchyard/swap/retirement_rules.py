"""Decide when a generation that was replaced retires, takes its flip back, or is removed. Pure: no I/O, no clock."""

from __future__ import annotations

from datetime import datetime, timedelta

from switchyard.policies import Rules
from switchyard.swap.flip_rules import previous_generation
from switchyard.swap.history import Event, Ledger, Request, SignOfLife, StatusRow


def linger_end(ledger: Ledger, generation: int, rules: Rules) -> datetime | None:
    """Return when a generation may retire: after its linger time, or at once if too many newer ones linger.

    None if it does not linger, or is kept until a person retires it.
    """
    lingering = ledger.lingering
    mine = next((entry for entry in lingering if entry.generation == generation), None)
    if mine is None:
        return None
    if _is_kept(ledger, generation, rules):
        return None if rules.keep is None else mine.at + rules.keep
    is_too_many = mine not in lingering[max(0, len(lingering) - rules.max_lingering) :]
    return mine.at if is_too_many else mine.at + rules.linger


def _is_kept(ledger: Ledger, generation: int, rules: Rules) -> bool:
    """Return whether a generation lingers for longer because a setting says so."""
    # A snapshot has no driver that could be kept running.
    return rules.is_keeping and ledger.is_lingering(generation) and not ledger.is_snapshot(generation)


def _retires_at(ledger: Ledger, generation: int, rules: Rules, seen: SignOfLife) -> datetime | None:
    """Return the end of the linger time, or an earlier time for a kept generation whose driver stays silent."""
    end, life = linger_end(ledger, generation, rules), ledger.last_life(generation)
    if life is None or not _is_kept(ledger, generation, rules):
        return end
    heard_at = max(filter(None, (life.at, seen(generation))))
    # By then its task has restarted the driver in vain; a rollback resumes the generation.
    return min(filter(None, (end, heard_at + rules.stuck + rules.ready_deadline)))


def may_retire(ledger: Ledger, status_row: StatusRow, generation: int) -> bool:
    """Return whether a generation was replaced, and no open request asks for it."""
    asked = ledger.request_of(generation)
    return (
        ledger.is_lingering(generation)
        and generation != status_row.generation
        and not (asked and ledger.is_open(asked))
    )


def should_retire(
    ledger: Ledger, status_row: StatusRow, generation: int, now: datetime, rules: Rules, seen: SignOfLife
) -> bool:
    """Return whether the time of a generation is over, and its successor has proven itself by a later report."""
    end = _retires_at(ledger, generation, rules, seen)
    if end is None or now < end or not may_retire(ledger, status_row, generation):
        return False
    if generation != previous_generation(ledger, status_row) or status_row.generation is None:
        return True
    # A snapshot has no driver that could report, or die.
    if ledger.is_snapshot(status_row.generation):
        return True
    alive_at = seen(status_row.generation)
    return alive_at is not None and alive_at >= end


def silent_lingerers(ledger: Ledger, status_row: StatusRow, now: datetime, rules: Rules, seen: SignOfLife) -> list[int]:
    """Return due generations that no driver retires: theirs is silent, or they are snapshots without one."""
    found = []
    for entry in ledger.lingering:
        generation = entry.generation
        if generation is None or not should_retire(ledger, status_row, generation, now, rules, seen):
            continue
        last = max(filter(None, (seen(generation), _retires_at(ledger, generation, rules, seen))))
        if ledger.is_snapshot(generation) or now - last > rules.silence:
            found.append(generation)
    return found


def should_undo(
    ledger: Ledger,
    status_row: StatusRow,
    generation: int,
    now: datetime,
    watched_since: datetime,
    rules: Rules,
    seen: SignOfLife,
) -> bool:
    """Return whether a lingering generation takes the flip back: its successor was silent for the probation time."""
    if status_row.generation is None or ledger.open_requests or generation != previous_generation(ledger, status_row):
        return False
    if ledger.is_snapshot(status_row.generation):
        return False
    last = ledger.last_life(generation)
    if last is None or last.event is not Event.LINGERING:
        return False
    alive_at = seen(status_row.generation)
    # A successor that worked for the linger time has proven itself, even if the old one is kept for longer.
    if rules.is_keeping and alive_at is not None and alive_at >= last.at + rules.linger:
        return False
    signs = [last.at, watched_since, alive_at]
    return now - max(filter(None, signs)) >= rules.probation


def is_on_probation(ledger: Ledger, now: datetime, rules: Rules) -> bool:
    """Return whether a lingering generation still watches the active one; a kept one does so only at first."""
    return any(not rules.is_keeping or now < entry.at + rules.probation for entry in ledger.lingering)


def explain_refusal(ledger: Ledger, status_row: StatusRow, generation: int) -> str | None:
    """Say why a person cannot retire a generation; None if it can be retired."""
    name, asked = f"generation {generation}", ledger.command_of(generation)
    if asked is None:
        return f"there is no {name}: `switchyard status` shows those that linger"
    if generation == status_row.generation:
        return f"{name} is active: swap or roll back first, then retire it"
    if ledger.is_open(asked):
        return f"{name} is being built or taken back by {asked.swapId}: wait for its outcome"
    if not may_retire(ledger, status_row, generation):
        return f"{name} has retired already, or was never active: none of its drivers runs"
    return None


def is_abandoned(ledger: Ledger, generation: int) -> bool:
    """Return whether a generation, or its resume, ended before its flip and is not closed yet."""
    asked, last = ledger.command_of(generation), ledger.last_life(generation)
    if asked is None or ledger.is_open(asked):
        return False
    if last is None:
        return True
    is_reopened = last.event is Event.RETIRED and asked.at > last.at
    return is_reopened and ledger.outcomes[asked.swapId].event in (Event.FAILED, Event.SUPERSEDED)


def is_over(ledger: Ledger, generation: int) -> bool:
    return ledger.is_retired(generation) or is_abandoned(ledger, generation)


def may_remove(ledger: Ledger, status_row: StatusRow, generation: int, now: datetime, keep: timedelta) -> bool:
    """Return whether a generation has been retired for its keep time; never the one that a rollback would take."""
    last = ledger.last_life(generation)
    return (
        last is not None
        and last.at <= now - keep
        and (ledger.was_active(generation) or ledger.is_finished(generation))
        and ledger.is_retired(generation)
        and not is_abandoned(ledger, generation)
        and not ledger.is_removed(generation)
        and generation not in (status_row.generation, previous_generation(ledger, status_row))
    )


def must_stop(ledger: Ledger, started_for: Request) -> bool:
    """Return whether a driver has nothing left to do; a generation that is resumed gets a new driver."""
    generation = started_for.generation
    ends = [e.at for e in ledger.entries if e.event is Event.RETIRED and e.generation == generation]
    return is_over(ledger, generation) or any(end > started_for.at for end in ends)
