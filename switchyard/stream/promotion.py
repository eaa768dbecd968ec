"""How a pending generation becomes the active one: it catches up, passes the data gate, is READY, and flips."""

from __future__ import annotations

import concurrent.futures
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

from switchyard.errors import SwitchyardError
from switchyard.offsets import Offsets, has_reached
from switchyard.stream.attempt import Attempt
from switchyard.stream.gate import GateVerdict, examine
from switchyard.stream.gate_topics import TopicRecords, find_end_to_read, read_again
from switchyard.stream.running_query import RunningQuery
from switchyard.swap import flip, transitions
from switchyard.swap.history import Event, Request

CANCEL_SECONDS = 0.2


class Promotion:
    """What this process has read and compared for the data gate; all else is in the history."""

    def __init__(self, attempt: Attempt, running: RunningQuery) -> None:
        self._attempt = attempt
        self._running = running
        self._runner = running.runner
        self._goals: dict[str, Offsets] = {}
        # The gate may take long on a busy machine; meanwhile the main thread shows that the driver lives.
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="gate")
        self._topic_rows: Future[TopicRecords] | None = None
        self._verdict: Future[GateVerdict] | None = None
        self._compared_for = ""
        """The swap id that the comparison was started for"""

    @property
    def is_comparing(self) -> bool:
        """Whether a comparison has begun whose verdict nobody has read."""
        return self._verdict is not None

    def wait_for_verdict(self, seconds: float) -> bool:
        """Wait for a comparison that is under way; return whether there was one."""
        if self._verdict is None or self._verdict.done():
            return False
        concurrent.futures.wait([self._verdict], seconds)
        return True

    def read_topics_early(self) -> None:
        """Read the topics again for the data gate while the first batch is still under way: the flip waits less."""
        limit, spec, running = self._attempt.settings.gate_records, self._attempt.spec, self._running
        if self._topic_rows is not None or not self._runner.is_pending or self._runner.first_batch is None or not limit:
            return
        batch_end, marks = self._runner.first_batch
        if (end := find_end_to_read(spec, batch_end, limit)) is not None:
            self._topic_rows = self._pool.submit(read_again, running.spark, spec, running.kafka, end, marks, limit)

    def advance(self, request: Request) -> None:
        """Take the next step towards the flip, if it can be taken now."""
        history, rules = self._attempt.history, self._attempt.settings.rules
        if not history.ledger().has(request.swapId, Event.READY):
            if not self.has_caught_up(request) or (proof := self._prove(request)) is None:
                return
            transitions.note(history, request.entry(Event.READY, proof))
        if flip.try_flip(history, request.swapId, datetime.now(UTC), rules):
            transitions.settle_due(history, datetime.now(UTC))

    def has_caught_up(self, request: Request) -> bool:
        position, goal = self._runner.progress.position, self._goals.get(request.swapId)
        # The first request has its goal in the spec. For a later one, to take a lingering generation back, the goal
        # is the end of the topics when this driver first sees the request.
        if goal is None:
            is_first = self._attempt.history.ledger().requests_of(request.generation)[0] == request
            goal = self._attempt.spec.readyOffsets if is_first else self._runner.progress.broker_ends
            if not goal:
                return False
            self._goals[request.swapId] = goal
        return position is not None and has_reached(position.end, goal)

    def _prove(self, request: Request) -> str | None:
        """Compare the rows with the batch join, unless they were compared before; return None while that goes on."""
        ledger = self._attempt.history.ledger()
        if ledger.is_lingering(request.generation):
            return "it was still running"
        if self._verdict is None:
            self._compared_for = request.swapId
            self._verdict = self._pool.submit(self._examine, ledger.was_active(request.generation))
        if not self._verdict.done():
            return None
        verdict, self._verdict = self._verdict.result(), None
        if not verdict.is_clean:
            raise SwitchyardError(f"the data gate is shut: {verdict.describe()}")
        return verdict.describe() if self._compared_for == request.swapId else self._prove(request)

    def _examine(self, is_resumed: bool) -> GateVerdict:
        # The next batch waits meanwhile: nobody reads this generation yet, and one after the other both end sooner.
        kafka = None if is_resumed else self._running.kafka
        limit = self._attempt.settings.gate_records
        with self._runner.busy:
            known = self._topic_rows.result() if self._topic_rows else None
            return examine(self._running.spark, self._attempt.layout, self._attempt.spec, kafka, limit, known)

    def cancel(self) -> None:
        # Spark cancels only the jobs that run now, and the gate starts many one after the other: so again and again.
        while self._verdict is not None and not self._verdict.done():
            self._running.spark.sparkContext.cancelAllJobs()
            concurrent.futures.wait([self._verdict], CANCEL_SECONDS)
