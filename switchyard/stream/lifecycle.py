"""The life of one attempt of a generation: claim, stream, prove itself, flip, linger, retire.

The main thread only watches and acts on the history; batches run in Spark's threads. An attempt ends in one of the ways
of `End`. All decisions are taken by `state_machine`, on what the history says now, not on what this process remembers.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import enum
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from switchyard.errors import AccessError, FencedError, InputError, SwitchyardError
from switchyard.kafka.client_settings import to_java
from switchyard.kafka.security import TOKEN_URL
from switchyard.kafka.topics import TopicReader
from switchyard.layout import BIG_TABLES, Layout
from switchyard.object_store import to_hadoop
from switchyard.offsets import Offsets, has_reached
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.stream.clock_jumps import JumpWatch
from switchyard.stream.continuity import check_continuity, check_topics
from switchyard.stream.failures import explain_failure, explain_text, insist
from switchyard.stream.gate import TopicRows, Verdict, examine, find_end_to_read, read_again
from switchyard.stream.pid_file import announced
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.stream.session import start_session
from switchyard.stream.stall import StallWatch
from switchyard.swap import state_machine, transitions
from switchyard.swap.generations import remove_checkpoint, require_access
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import open_history
from switchyard.swap.planning import allow_seconds, count_to_read
from switchyard.swap.reconcile import clean_up, last_seen, note_failure, retire_silent
from switchyard.swap.state_machine import Event, Ledger, Request, StatusRow
from switchyard.tables.logs import Level, tell
from switchyard.tables.writer import TableWriter, claim_attempt

LOOK_SECONDS = 0.5
BUILDING_SECONDS = 0.05
RESTING_SECONDS = 1.0
LAG_SECONDS = 2.0
WATCHED_HEARTBEAT_SECONDS = 1.0
PULSE_SECONDS = 2.0
CANCEL_SECONDS = 0.2
log = logging.getLogger("switchyard.driver")


class End(enum.Enum):
    """How an attempt ended, with its exit code."""

    RETIRED = 0
    FENCED = 75
    STOPPED = 143


def run_generation(settings: Settings, spec: GenerationSpec, kafka: Mapping[str, str]) -> End:
    layout, stop = settings.layout, threading.Event()
    history = open_history(layout)
    request = _known_request(settings, history, spec)
    if state_machine.must_stop(history.ledger(), request):
        log.info("generation %s is over; there is nothing to do", spec.generation)
        return End.RETIRED
    try:
        attempt = _begin(layout, history, request)
        with TopicReader(kafka) as reader:
            check_continuity(layout, spec, reader)
        return _stream(settings, spec, kafka, history, request, attempt, stop)
    except FencedError as error:
        log.warning("fenced out: %s", error)
        return End.FENCED
    except Exception as error:
        reason = explain_failure(error)
        insist(reason, lambda: _tell_failure(settings, history, request, reason), stop)
        raise
    finally:
        _leave_nothing(layout, history, spec.generation)


def _begin(layout: Layout, history: HistoryStore, request: Request) -> int:
    """Takes the number of the attempt, which fences older ones out, and says that it starts."""
    attempt = claim_attempt(layout, request.generation)
    if state_machine.must_stop(history.ledger(), request):
        raise FencedError(f"generation {request.generation} ended while attempt {attempt} was starting")
    if not transitions.note(history, request.entry(Event.STARTING, f"attempt {attempt}")):
        text = f"the driver of generation {request.generation} is starting again: attempt {attempt}"
        tell(layout, text, generation=request.generation, swap_id=request.swapId)
    return attempt


def _tell_failure(settings: Settings, history: HistoryStore, request: Request, reason: str) -> None:
    note_failure(settings, history, request.swapId, reason)
    if state_machine.is_abandoned(history.ledger(), request.generation):
        clean_up(settings.layout, history, request.generation)


def _leave_nothing(layout: Layout, history: HistoryStore, generation: int) -> None:
    """Somebody else may have closed this build and removed its checkpoint while the query was still writing it."""
    ledger = history.ledger()
    if ledger.is_retired(generation) and not ledger.was_active(generation):
        remove_checkpoint(layout, generation)


def _stream(
    settings: Settings,
    spec: GenerationSpec,
    kafka: Mapping[str, str],
    history: HistoryStore,
    request: Request,
    attempt: int,
    stop: threading.Event,
) -> End:
    with announced(settings, spec.generation, stop.set):
        with _watching_for_an_early_end(settings, request, attempt):
            java_kafka = to_java(kafka)
            _check_access(spec, kafka)
            runner = BatchRunner(settings, spec, attempt)
            spark = start_session(settings, f"switchyard generation {spec.generation}", kafka.get(TOKEN_URL, ""))
            rows = generation_rows(spark, spec, java_kafka, settings.max_offsets_per_trigger)
        runner.is_building = True
        query = (
            rows.writeStream.queryName(f"generation-{spec.generation}")
            .foreachBatch(runner)
            .option("checkpointLocation", to_hadoop(settings.layout.checkpoint(spec.generation)))
            .trigger(processingTime=f"{settings.trigger_seconds} seconds")
            .start()
        )
        runner.reported_at = time.monotonic()
        with TopicReader(kafka) as reader, contextlib.closing(_Stopper(query, runner)):
            return _Watch(settings, history, request, runner, spark, query, reader, java_kafka, stop).until_end()


def _check_access(spec: GenerationSpec, kafka: Mapping[str, str]) -> None:
    """A client that is turned away is told so at once and in plain words; for a broker that is away, Spark waits."""
    try:
        with TopicReader(kafka) as reader:
            require_access(reader, spec.target)
    except (AccessError, InputError):
        raise
    except SwitchyardError as error:
        log.warning("%s", error)


def _known_request(settings: Settings, history: HistoryStore, spec: GenerationSpec) -> Request:
    """The request of a generation; one started by hand gets a request of its own, so that it has a history too."""
    known = history.ledger().request_of(spec.generation)
    if known is not None:
        return known

    def choose(ledger: Ledger, status_row: StatusRow) -> tuple[int, Target, str]:
        return spec.generation, spec.target, spec.start

    records = count_to_read(spec.startOffsets, spec.readyOffsets)
    seconds = allow_seconds(settings, history.ledger(), records, spec.target)
    return transitions.request(
        history,
        f"{state_machine.BY_HAND_PREFIX}{spec.generation}",
        choose=choose,
        requested_by="hand",
        now=datetime.now(UTC),
        rules=settings.rules,
        detail="the job was started by hand",
        within=timedelta(seconds=seconds),
    )


@contextlib.contextmanager
def _watching_for_an_early_end(settings: Settings, request: Request, attempt: int) -> Iterator[None]:
    """A session takes many seconds to start; who is superseded meanwhile gives the processors back at once.

    Nothing has been written yet, so the process may simply end.
    """
    started, generation = threading.Event(), request.generation

    def watch() -> None:
        history = open_history(settings.layout)
        fence = TableWriter(settings.layout, BIG_TABLES[0], generation, attempt)
        while not started.wait(RESTING_SECONDS):
            if state_machine.must_stop(history.ledger(), request):
                if state_machine.is_abandoned(history.ledger(), generation):
                    clean_up(settings.layout, history, generation)
                _leave_nothing(settings.layout, history, generation)
                settings.workspace.driver_pid(generation).unlink(missing_ok=True)
                log.info("generation %s is over before its session has started", generation)
                os._exit(End.RETIRED.value)
            try:
                fence.refresh()
            except FencedError as error:
                tell(settings.layout, f"fenced out: {error}", generation=generation, swap_id=request.swapId)
                os._exit(End.FENCED.value)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        started.set()
        thread.join()


@dataclass(frozen=True)
class _Stopper:
    """Stops the query between two batches."""

    query: StreamingQuery
    runner: BatchRunner

    def close(self) -> None:
        self.runner.stopping.set()
        with self.runner.busy:
            self.query.stop()


@dataclass
class _Watch:
    """The main loop. What it keeps is only about this process: when to look, and what was proven."""

    settings: Settings
    history: HistoryStore
    started_for: Request
    runner: BatchRunner
    spark: SparkSession
    query: StreamingQuery
    reader: TopicReader
    java_kafka: Mapping[str, str]
    stop: threading.Event
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    _goals: dict[str, Offsets] = field(default_factory=dict)
    _is_resting: bool = False
    _is_watched: bool = False
    _due: dict[str, float] = field(default_factory=dict)
    _clock: JumpWatch = field(default_factory=JumpWatch)
    _silent_since: float | None = None
    _is_doubted: bool = False
    _reading: Future[TopicRows] | None = None
    _proving: tuple[str, Future[Verdict]] | None = None
    """The request whose rows are compared now"""
    _is_still: bool = False

    def __post_init__(self) -> None:
        self._stall_watch = StallWatch(self.spark, self.runner)
        # The gate may take long on a busy machine; meanwhile the main thread shows that the driver lives.
        self._gate = ThreadPoolExecutor(2, thread_name_prefix="gate")

    @property
    def layout(self) -> Layout:
        return self.settings.layout

    @property
    def generation(self) -> int:
        return self.runner.spec.generation

    def until_end(self) -> End:
        while True:
            if self._wait():
                self._tell("asked to stop: the driver ends after its batch")
                return End.STOPPED
            if end := self._look():
                return end

    def _wait(self) -> bool:
        """Until a look is due; a batch of a build is looked at at once. Whether the driver was asked to stop."""
        if self._proving is not None and not self._proving[1].done():
            concurrent.futures.wait([self._proving[1]], LOOK_SECONDS)
            return self.stop.is_set()
        every, deadline = BUILDING_SECONDS if self.runner.is_building else LOOK_SECONDS, time.monotonic() + LOOK_SECONDS
        while self.runner.looked.is_set() and time.monotonic() < deadline:
            if self.stop.wait(every):
                return True
            self._read_again_soon()
        return self.stop.is_set()

    def _read_again_soon(self) -> None:
        """The data gate reads the topics again while the first batch is still under way, so the flip waits less."""
        limit, spec = self.settings.gate_records, self.runner.spec
        if self._reading is not None or not self.runner.is_building or self.runner.begun is None or not limit:
            return
        first_end, marks = self.runner.begun
        if (end := find_end_to_read(spec, first_end, limit)) is not None:
            self._reading = self._gate.submit(read_again, self.spark, spec, self.java_kafka, end, marks, limit)

    def _look(self) -> End | None:
        if self.runner.fenced is not None:
            return self._end_fenced(self.runner.fenced)
        if not self.query.isActive or self.runner.failure:
            reason = self.runner.failure or explain_text(str(self.query.exception()))
            raise SwitchyardError(f"the stream has stopped: {reason}")
        if self._is_due("lag", LAG_SECONDS):
            self._ask_lag()
            self._check_stall()
        try:
            self._report_alive()
        except FencedError as error:
            return self._end_fenced(error)
        if self._is_due("pulse", PULSE_SECONDS):
            self._show_pulse()
        if not self.runner.looked.is_set() or self._is_due("history", self._history_seconds):
            end = self._act()
            if self._proving is None or not self.runner.is_building:
                self.runner.looked.set()
            return end
        return None

    @property
    def _history_seconds(self) -> float:
        return RESTING_SECONDS if self._is_resting else LOOK_SECONDS

    def _show_pulse(self) -> None:
        """For the task that watches over this process; not where another attempt has put its own pid since."""
        path = self.settings.workspace.driver_pid(self.generation)
        with contextlib.suppress(OSError):
            if path.read_text() == str(os.getpid()):
                os.utime(path)

    def _report_alive(self) -> None:
        """While the old generation waits for signs of life, they come more often."""
        every = WATCHED_HEARTBEAT_SECONDS if self._is_watched else self.settings.heartbeat_seconds
        if time.monotonic() - self.runner.reported_at > every:
            self._look_around_when_idle()
            self.runner.report_alive()

    def _look_around_when_idle(self) -> None:
        """A batch does this by itself; in between nobody else would notice a newer attempt, or a person to forget."""
        if self.runner.busy.acquire(blocking=False):
            try:
                self.runner.sink.check_fence()
                is_behind = self.runner.sink.has_new_marks()
            finally:
                self.runner.busy.release()
            if is_behind:
                self.runner.forget_soon()

    def _is_due(self, what: str, every_seconds: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_seconds
        return True

    def _ask_lag(self) -> None:
        """A broker that does not answer now will show in the lag's absence, not stop the stream."""
        spec, asked_at = self.runner.spec, time.monotonic()
        try:
            check_topics(spec, self.reader)
            self.runner.broker_ends = {
                topic: self.reader.bounds(topic)[1] for topic in (spec.usersTopic, spec.accountsTopic)
            }
        except InputError as error:
            self._doubt(error)
        except SwitchyardError as error:
            log.warning("%s", error)
            self.runner.broker_ends = {}
            self._note_silence(asked_at)
        else:
            self._is_doubted = False
            self._note_answer()

    def _doubt(self, error: InputError) -> None:
        """A broker that has just started may not know its topics yet: one that says so twice in a row means it."""
        if self._is_doubted:
            raise error
        self._is_doubted = True

    def _check_stall(self) -> None:
        """A driver that stands still says so, and ends if it stays like this: its task starts the next attempt."""
        self._stall_watch.look()
        if reason := self._stall_watch.explain_end(self.settings.rules.stuck):
            # The query is stopped after its batch, and this batch would not end by itself.
            self.spark.sparkContext.cancelAllJobs()
            can_fail = self.runner.is_building and self.history.status_row().generation is not None
            raise SwitchyardError(f"no progress: {reason}{'; then send it again' if can_fail else ''}")
        reason = self._stall_watch.explain(self.settings.limits.standstill)
        if reason and not self._is_still:
            self._tell(reason, "WARNING")
            self.runner.report_alive()
        if self._is_still and not reason:
            self._tell("rows move again")
        self._is_still = reason is not None

    def _note_silence(self, asked_at: float) -> None:
        if self._silent_since is None:
            self._silent_since = asked_at
            self._tell("the broker does not answer; the driver waits for it", "WARNING")

    def _note_answer(self) -> None:
        if self._silent_since is not None:
            silence = time.monotonic() - self._silent_since
            self._silent_since = None
            self._tell(f"the broker answers again, after {silence:.0f} s; the driver goes on")

    def _note_jump(self) -> None:
        """Times from before a jump say nothing about silence: whoever is watched gets its whole time anew."""
        jump = self._clock.find_jump(_now(), time.monotonic())
        if jump is not None:
            self.since = _now()
            self._tell(f"the clock has jumped by {jump.total_seconds():.0f} s", "WARNING")

    def _act(self) -> End | None:
        """Does what is due for this generation, and what is due for all."""
        self._note_jump()
        transitions.settle_due(self.history, _now())
        ledger, status_row = self.history.ledger(), self.history.status_row()
        request = ledger.building
        is_building = request is not None and request.generation == self.generation
        is_active = status_row.generation == self.generation
        self._is_watched = is_active and state_machine.is_on_probation(ledger, _now(), self.settings.rules)
        self._is_resting = is_active and not self._is_watched
        self.runner.is_building = is_building and not is_active
        self.runner.is_catching_up = self._is_catching_up(ledger, status_row)
        if state_machine.is_abandoned(ledger, self.generation):
            return self._abandon()
        if state_machine.must_stop(ledger, self.started_for):
            return End.RETIRED
        if is_building and request is not None and not is_active:
            self._build(request)
        elif is_active and _now() - self.since > self.settings.rules.silence:
            retire_silent(self.settings, self.history, _now())
        elif ledger.is_lingering(self.generation):
            return self._linger(ledger, status_row)
        return None

    def _is_catching_up(self, ledger: Ledger, status_row: StatusRow) -> bool:
        """Whether a swap waits for what this driver reads; with nothing active there is nothing to fall back to."""
        request = ledger.building
        if request is None or not self.runner.is_building or status_row.generation is None:
            return False
        return not ledger.has(request.swapId, Event.READY) and not self._has_caught_up(request)

    def _build(self, request: Request) -> None:
        """Ready once it has caught up and its rows were compared; then the flip."""
        if not self.history.ledger().has(request.swapId, Event.READY):
            if not self._has_caught_up(request):
                return
            if (proof := self._prove(request)) is None:
                return
            transitions.note(self.history, request.entry(Event.READY, proof))
        if transitions.try_flip(self.history, request.swapId, _now(), self.settings.rules):
            transitions.settle_due(self.history, _now())

    def _has_caught_up(self, request: Request) -> bool:
        """The first request has its goal in the spec; one that asks for the generation again, the end as seen now."""
        position, goal = self.runner.position, self._goals.get(request.swapId)
        if goal is None:
            is_first = self.history.ledger().requests_of(self.generation)[0] == request
            goal = self.runner.spec.readyOffsets if is_first else self.runner.broker_ends
            if not goal:
                return False
            self._goals[request.swapId] = goal
        return position is not None and has_reached(position.end, goal)

    def _prove(self, request: Request) -> str | None:
        """The data gate; None while it compares.

        A generation that lingers was proven before and is taken back at once.
        """
        ledger = self.history.ledger()
        if ledger.is_lingering(self.generation):
            return "it was still running"
        if self._proving is None:
            is_resumed = ledger.was_active(self.generation)
            self._proving = (request.swapId, self._gate.submit(self._examine, is_resumed))
        swap_id, proving = self._proving
        if not proving.done():
            return None
        self._proving = None
        verdict = proving.result()
        if not verdict.is_clean:
            raise SwitchyardError(f"the data gate is shut: {verdict.describe()}")
        return verdict.describe() if swap_id == request.swapId else self._prove(request)

    def _examine(self, is_resumed: bool) -> Verdict:
        """Nobody reads this generation yet: its next batch can wait for the proof, and both are done sooner."""
        kafka = None if is_resumed else self.java_kafka
        with self.runner.busy:
            known = self._reading.result() if self._reading else None
            return examine(self.spark, self.layout, self.runner.spec, kafka, self.settings.gate_records, known)

    def _abandon(self) -> End:
        # The gate is many small jobs one after the other, and one that begins after a cancellation goes on.
        while self._proving is not None and not self._proving[1].done():
            self.spark.sparkContext.cancelAllJobs()
            concurrent.futures.wait([self._proving[1]], CANCEL_SECONDS)
        _Stopper(self.query, self.runner).close()
        clean_up(self.layout, self.history, self.generation)
        return End.RETIRED

    def _linger(self, ledger: Ledger, status_row: StatusRow) -> End | None:
        def seen(generation: int) -> datetime | None:
            return last_seen(self.layout, generation)

        now, rules = _now(), self.settings.rules
        if state_machine.should_undo(ledger, status_row, self.generation, now, self.since, rules, seen):
            transitions.undo_flip(self.history, self.generation, now, self.since, rules, seen)
            return None
        if not state_machine.should_retire(ledger, status_row, self.generation, now, rules, seen):
            return None
        with self.runner.busy:
            detail = f"replaced by generation {status_row.generation}"
            if not transitions.try_retire(self.history, self.generation, detail, now, rules, seen):
                return None
            self.runner.stopping.set()
        _Stopper(self.query, self.runner).close()
        claim_attempt(self.layout, self.generation)
        return End.RETIRED

    def _end_fenced(self, error: FencedError) -> End:
        """A generation that was retired by others, or by hand, is fenced out too: its task has succeeded."""
        if state_machine.must_stop(self.history.ledger(), self.started_for):
            return End.RETIRED
        self._tell(f"fenced out: {error}")
        return End.FENCED

    def _tell(self, msg: str, level: Level = "INFO") -> None:
        request = self.history.ledger().request_of(self.generation)
        swap_id = request.swapId if request else None
        tell(self.layout, msg, level=level, generation=self.generation, swap_id=swap_id)


def _now() -> datetime:
    return datetime.now(UTC)
