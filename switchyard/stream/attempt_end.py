"""How an attempt ends, and what it leaves: retired, given up before its flip, fenced out, or failed."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

from switchyard.errors import FencedError
from switchyard.layout import BIG_TABLES, Layout
from switchyard.settings import Settings
from switchyard.stream.attempt import Attempt, End
from switchyard.stream.running_query import RunningQuery
from switchyard.swap import retirement_rules, transitions
from switchyard.swap.generations import remove_checkpoint
from switchyard.swap.history import Request
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import open_history
from switchyard.swap.reconcile import clean_up, last_seen, note_failure
from switchyard.tables.logs import write_log
from switchyard.tables.writer import TableWriter, claim_attempt

EARLY_SECONDS = 1.0
"""How often the history is read while the session starts"""
log = logging.getLogger("switchyard.driver")


@contextlib.contextmanager
def ending_early(attempt: Attempt) -> Iterator[None]:
    """End the process at once if the generation is superseded while its session starts: nothing is written yet."""
    started = threading.Event()
    thread = threading.Thread(target=_end_when_over, args=[attempt, started], daemon=True)
    thread.start()
    try:
        yield
    finally:
        started.set()
        thread.join()


def _end_when_over(attempt: Attempt, started: threading.Event) -> None:
    layout, generation = attempt.layout, attempt.generation
    # The main thread has its own tables open, which are not for two threads.
    history = open_history(layout)
    fence = TableWriter(layout, BIG_TABLES[0], generation, attempt.number)
    while not started.wait(EARLY_SECONDS):
        if retirement_rules.must_stop(history.ledger(), attempt.request):
            if retirement_rules.is_abandoned(history.ledger(), generation):
                clean_up(layout, history, generation)
            remove_leftovers(layout, history, generation)
            attempt.settings.workspace.driver_pid(generation).unlink(missing_ok=True)
            log.info("generation %s is over before its session has started", generation)
            os._exit(End.RETIRED.value)
        try:
            fence.refresh()
        except FencedError as error:
            write_log(layout, f"fenced out: {error}", generation=generation, swap_id=attempt.request.swapId)
            os._exit(End.FENCED.value)


def retire_if_due(attempt: Attempt, running: RunningQuery, since: datetime) -> End | None:
    """End a lingering generation when its time is over, or make it active again when its successor is silent.

    `since` is when this driver began to watch. Only silence after that counts against the successor.
    """
    history, generation = attempt.history, attempt.generation
    ledger, status_row = history.ledger(), history.status_row()
    now, rules, seen = datetime.now(UTC), attempt.settings.rules, partial(last_seen, attempt.layout)
    if retirement_rules.should_undo(ledger, status_row, generation, now, since, rules, seen):
        transitions.undo_flip(history, generation, now, since, rules, seen)
        return None
    if not retirement_rules.should_retire(ledger, status_row, generation, now, rules, seen):
        return None
    # RETIRED is written between two batches, and no batch begins after it.
    with running.runner.busy:
        detail = f"replaced by generation {status_row.generation}"
        if not transitions.try_retire(history, generation, detail, now, rules, seen):
            return None
        running.runner.stopping.set()
    running.close()
    claim_attempt(attempt.layout, generation)
    return End.RETIRED


def give_up(attempt: Attempt, running: RunningQuery) -> End:
    """End a generation that was withdrawn before its flip, and remove what it has written."""
    running.close()
    clean_up(attempt.layout, attempt.history, attempt.generation)
    return End.RETIRED


def end_fenced(attempt: Attempt, error: FencedError) -> End:
    """Choose the end of a fenced attempt: one that was fenced because its generation retired has succeeded."""
    if attempt.must_stop():
        return End.RETIRED
    attempt.log(f"fenced out: {error}")
    return End.FENCED


def record_failure(settings: Settings, history: HistoryStore, request: Request, reason: str) -> None:
    note_failure(settings, history, request.swapId, reason)
    if retirement_rules.is_abandoned(history.ledger(), request.generation):
        clean_up(settings.layout, history, request.generation)


def remove_leftovers(layout: Layout, history: HistoryStore, generation: int) -> None:
    """Remove the checkpoint of a generation that was closed before its flip."""
    # The process that closed it has removed the checkpoint too, but perhaps while the query was still writing there.
    ledger = history.ledger()
    if ledger.is_retired(generation) and not ledger.was_active(generation):
        remove_checkpoint(layout, generation)
