"""The main thread of a driver: waits until something is due, and does it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from switchyard.deadline import Deadline
from switchyard.errors import FencedError, SwitchyardError
from switchyard.kafka.topics import TopicReader
from switchyard.stream.attempt import Attempt, End
from switchyard.stream.attempt_end import end_fenced, give_up, retire_if_due
from switchyard.stream.broker_watch import BrokerWatch
from switchyard.stream.clock_jumps import ClockJumps
from switchyard.stream.pid_file import touch_pid_file
from switchyard.stream.promotion import Promotion
from switchyard.stream.running_query import RunningQuery
from switchyard.stream.stall import StallWatch
from switchyard.swap import retirement_rules, transitions
from switchyard.swap.history import Event, Ledger, StatusRow
from switchyard.swap.reconcile import retire_silent

HISTORY_SECONDS = 0.5
RESTING_HISTORY_SECONDS = 1.0
"""How often the history is read by an active generation that no other one watches"""
STOP_SECONDS = 0.5
PENDING_STOP_SECONDS = 0.05
"""How often the driver sees whether it is to stop; while it is pending, also whether a batch has ended"""
BROKER_SECONDS = 2.0
PROBATION_SECONDS = 1.0
"""Between two heartbeats while a lingering generation waits for them, to take over when there are none"""
PID_FILE_SECONDS = 2.0


class WatchLoop:
    """What it keeps is only about this process: when something is due, and since when it watches."""

    def __init__(self, attempt: Attempt, running: RunningQuery, reader: TopicReader, stop: threading.Event) -> None:
        self._attempt = attempt
        self._running = running
        self._runner = running.runner
        self._stop = stop
        self._since = _now()
        self._is_resting = False
        self._is_on_probation = False
        self._broker_due, self._pid_file_due, self._history_due = Deadline(0), Deadline(0), Deadline(0)
        self._clock = ClockJumps()
        self._broker = BrokerWatch(attempt, self._runner, reader)
        self._stall = StallWatch(running.spark, self._runner)
        self._promotion = Promotion(attempt, running)

    def until_end(self) -> End:
        while True:
            if self._wait():
                self._attempt.log("asked to stop: the driver ends after its batch")
                return End.STOPPED
            if end := self._do_what_is_due():
                return end

    def _wait(self) -> bool:
        """Wait until something may be due, or a batch of a pending generation has ended; return whether to stop."""
        if self._promotion.wait_for_verdict(HISTORY_SECONDS):
            return self._stop.is_set()
        every = PENDING_STOP_SECONDS if self._runner.is_pending else STOP_SECONDS
        deadline = Deadline(HISTORY_SECONDS)
        while self._runner.batch_seen.is_set() and not deadline.has_passed:
            if self._stop.wait(every):
                return True
            self._promotion.read_topics_early()
        return self._stop.is_set()

    def _do_what_is_due(self) -> End | None:
        if self._runner.fenced is not None:
            return end_fenced(self._attempt, self._runner.fenced)
        if reason := self._running.find_failure():
            raise SwitchyardError(f"the stream has stopped: {reason}")
        if self._broker_due.restart_if_passed(BROKER_SECONDS):
            self._broker.ask_ends()
            self._stall.check(self._attempt)
        try:
            self._report_if_due()
        except FencedError as error:
            return end_fenced(self._attempt, error)
        if self._pid_file_due.restart_if_passed(PID_FILE_SECONDS):
            touch_pid_file(self._attempt.settings, self._attempt.generation)
        every = RESTING_HISTORY_SECONDS if self._is_resting else HISTORY_SECONDS
        if self._runner.batch_seen.is_set() and not self._history_due.restart_if_passed(every):
            return None
        end = self._follow_history()
        if not self._promotion.is_comparing or not self._runner.is_pending:
            self._runner.batch_seen.set()
        return end

    def _report_if_due(self) -> None:
        """Write a heartbeat into `progress` when no batch has reported for long enough."""
        every = PROBATION_SECONDS if self._is_on_probation else self._attempt.settings.heartbeat_seconds
        if time.monotonic() - self._runner.progress.reported_at > every:
            self._runner.check_tables_when_idle()
            self._runner.progress.report_alive()

    def _follow_history(self) -> End | None:
        """Do what is due for this generation, from its flip to its retirement, and what is due for all."""
        self._note_clock_jump()
        history, generation = self._attempt.history, self._attempt.generation
        rules = self._attempt.settings.rules
        transitions.settle_due(history, _now())
        ledger, status_row = history.ledger(), history.status_row()
        request = ledger.pending
        is_active = status_row.generation == generation
        self._is_on_probation = is_active and retirement_rules.is_on_probation(ledger, _now(), rules)
        self._is_resting = is_active and not self._is_on_probation
        self._runner.is_pending = request is not None and request.generation == generation and not is_active
        self._runner.is_awaited = self._is_awaited(ledger, status_row)
        if retirement_rules.is_abandoned(ledger, generation):
            self._promotion.cancel()
            return give_up(self._attempt, self._running)
        if retirement_rules.must_stop(ledger, self._attempt.request):
            return End.RETIRED
        if request is not None and self._runner.is_pending:
            self._promotion.advance(request)
        elif is_active and _now() - self._since > rules.silence:
            retire_silent(self._attempt.settings, history, _now())
        elif ledger.is_lingering(generation):
            return retire_if_due(self._attempt, self._running, self._since)
        return None

    def _is_awaited(self, ledger: Ledger, status_row: StatusRow) -> bool:
        """Return whether a swap waits for this driver; with nothing active there is nothing to fall back to."""
        request = ledger.pending
        if request is None or not self._runner.is_pending or status_row.generation is None:
            return False
        # Until READY and not only until it has caught up: the data gate can hang too.
        return not ledger.has(request.swapId, Event.READY)

    def _note_clock_jump(self) -> None:
        """After a clock jump, restart the silence timer: times from before say nothing about silence."""
        jump = self._clock.find_jump(_now(), time.monotonic())
        if jump is not None:
            self._since = _now()
            self._attempt.log(f"the clock has jumped by {jump.total_seconds():.0f} s", "WARNING")


def _now() -> datetime:
    return datetime.now(UTC)
