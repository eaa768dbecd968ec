"""Do what is due: write outcomes, retire silent generations, remove what failed requests left.

There is no coordinator. The control DAG calls this each minute and at each message, drivers take some steps each
second, and every step may be repeated: what a process leaves undone when it dies, the next one does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.swap import flip_rules, retirement_rules, transitions
from switchyard.swap.generations import remove_checkpoint
from switchyard.swap.history import Event, Ledger, Request, SwapHistory, run_id_of
from switchyard.tables.logs import LogLevel, write_log
from switchyard.tables.progress import newest_progress, report_again
from switchyard.tables.removal import remove_generation_rows
from switchyard.tables.writer import claim_attempt

SNAPSHOT_TIME = timedelta(minutes=5)
"""How old the progress row of an active snapshot may get, so that its readers stay near the newest versions."""


@dataclass(frozen=True)
class Run:
    """The Airflow run that gives a request its driver."""

    run_id: str
    note: str
    conf: dict[str, str | int] = field(default_factory=dict)


def last_seen(layout: Layout, generation: int) -> datetime | None:
    progress = newest_progress(layout, generation)
    return progress.at if progress else None


def reconcile(settings: Settings, history: SwapHistory) -> None:
    now = datetime.now(UTC)
    transitions.settle_due(history, now)
    if transitions.flip_snapshot(history, now, settings.rules):
        transitions.settle_due(history, now)
    retire_silent(settings, history, now)
    give_up_stuck(settings, history, now)
    report_snapshot(settings.layout, history, now)
    ledger = history.ledger()
    for generation in ledger.generations:
        if retirement_rules.is_abandoned(ledger, generation):
            clean_up(settings.layout, history, generation)


def retire_silent(settings: Settings, history: SwapHistory, now: datetime) -> None:
    """Retire lingering generations whose driver hangs or is gone."""
    layout, rules, seen = settings.layout, settings.rules, partial(last_seen, settings.layout)
    for generation in retirement_rules.silent_lingerers(history.ledger(), history.status_row(), now, rules, seen):
        is_snapshot = history.ledger().is_snapshot(generation)
        detail = "it was replaced" if is_snapshot else "its driver was not heard of any more, and is fenced out"
        if transitions.try_retire(history, generation, detail, now, rules, seen):
            # A fence: should the driver wake up, it can no longer commit.
            claim_attempt(layout, generation)


def retire_now(settings: Settings, history: SwapHistory, generation: int, detail: str) -> None:
    """Retire a lingering generation because a person wants it; its driver notices within a second and ends."""
    transitions.settle_due(history, datetime.now(UTC))
    if refusal := transitions.retire_by_hand(history, generation, detail):
        raise InputError(refusal)
    # A fence: the driver must not commit the batch that it is working on.
    claim_attempt(settings.layout, generation)


def retire_kept(layout: Layout, history: SwapHistory) -> list[int]:
    """Retire every kept generation that no open request asks for, after all drivers were stopped."""
    detail = "it was kept until everything was stopped"
    kept = [entry.generation for entry in history.ledger().lingering if entry.generation is not None]
    ended = [generation for generation in kept if transitions.retire_by_hand(history, generation, detail) is None]
    for generation in ended:
        claim_attempt(layout, generation)
    return ended


def give_up_stuck(settings: Settings, history: SwapHistory, now: datetime) -> None:
    """Fail the pending swap before its deadline if its driver never came or is gone."""
    ledger, seen = history.ledger(), partial(last_seen, settings.layout)
    request = flip_rules.find_stuck(ledger, history.status_row(), now, settings.rules, seen)
    if request is None:
        return
    if ledger.has(request.swapId, Event.STARTING):
        cause = "its driver is not heard of any more; read the log of its task `stream`"
    else:
        cause = "its driver never started; see that Airflow's scheduler runs and switchyard_generation is not paused"
    seconds = settings.stuck_seconds
    transitions.give_up(history, request.swapId, f"no progress for {seconds:g} s: {cause}, then send it again", now)


def report_snapshot(layout: Layout, history: SwapHistory, now: datetime) -> None:
    """Report an active snapshot, which has no driver, at the newest versions: old ones cannot be opened for ever."""
    ledger, generation = history.ledger(), history.status_row().generation
    if generation is None or not ledger.is_snapshot(generation):
        return
    last = newest_progress(layout, generation)
    if last is not None and now - last.at >= SNAPSHOT_TIME:
        report_again(layout, last, now)


def clean_up(layout: Layout, history: SwapHistory, generation: int) -> None:
    """Close an abandoned generation; remove its rows unless it was active once or is a finished snapshot."""
    ledger = history.ledger()
    asked = [*ledger.requests_of(generation), *filter(None, [ledger.snapshots.get(generation)])]
    has_driver = any(ledger.has(request.swapId, Event.STARTING) for request in asked)
    if has_driver:
        claim_attempt(layout, generation)
    if ledger.is_finished(generation):
        detail = "it is a finished snapshot and keeps its rows"
    elif ledger.was_active(generation):
        detail = "it keeps its rows and its checkpoint"
    else:
        removed = remove_generation_rows(layout, generation) if has_driver else 0
        remove_checkpoint(layout, generation)
        detail = f"its rows ({removed} files) and its checkpoint are removed" if has_driver else "it had no driver yet"
    transitions.close_abandoned(history, generation, detail)


def run_of(ledger: Ledger, request: Request) -> Run:
    target = request.target
    return Run(
        run_id=run_id_of(ledger, request),
        note=f"generation {request.generation}: {target}, from {request.start}; "
        f"swap {request.swapId}, asked for by {request.requestedBy}",
        conf={
            "swap_id": request.swapId,
            "generation": request.generation,
            "users_topic": target.usersTopic,
            "accounts_topic": target.accountsTopic,
            "join_type": target.joinType,
            "start": request.start,
        },
    )


def run_of_life(ledger: Ledger, generation: int) -> Run | None:
    """Return the run of a generation's driver: that of its newest request that got one."""
    if ledger.is_snapshot(generation):
        return None
    requests = ledger.requests_of(generation)
    started = [request for request in requests if ledger.has(request.swapId, Event.STARTING)]
    chosen = (started or requests)[-1:]
    return run_of(ledger, chosen[0]) if chosen else None


def note_failure(settings: Settings, history: SwapHistory, swap_id: str, reason: str) -> None:
    """End the request of a driver that failed, or log why the driver of an active generation is started again."""
    fail_pending(settings, history, swap_id, reason)
    log_about_active(settings, history, swap_id, f"failed and is started again: {reason}", level="ERROR")


def log_about_active(settings: Settings, history: SwapHistory, swap_id: str, what: str, level: LogLevel) -> None:
    """Log one line about the driver of a generation that has flipped; a pending one has its outcome."""
    request, outcome = history.ledger().find(swap_id), history.ledger().outcomes.get(swap_id)
    if request is not None and outcome is not None and outcome.event is Event.APPLIED:
        text = f"the driver of generation {request.generation} {what}"
        write_log(settings.layout, text, level=level, generation=request.generation, swap_id=swap_id)


def fail_pending(settings: Settings, history: SwapHistory, swap_id: str, reason: str) -> None:
    """Fail the swap of a driver that ended before the flip, unless there is nothing to fall back to."""
    request = history.ledger().find(swap_id)
    if request is None or not history.ledger().is_open(request):
        return
    if history.status_row().generation is None:
        text = f"the driver of generation {request.generation} failed and is started again: {reason}"
        write_log(settings.layout, text, level="ERROR", generation=request.generation, swap_id=swap_id)
        return
    transitions.give_up(history, swap_id, reason, datetime.now(UTC))
