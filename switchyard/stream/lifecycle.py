"""The life of one attempt of a generation: claim, stream, become ready, flip, linger, retire.

The main thread only watches and decides; batches run in Spark's threads. An attempt ends in one of the ways of `End`.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from pyspark.sql.streaming.query import StreamingQuery

from switchyard.errors import FencedError, SwitchyardError
from switchyard.generations import GenerationSpec
from switchyard.kafka.client import to_java
from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.stream.offsets import has_reached
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.stream.session import start_session
from switchyard.tables import history, store
from switchyard.tables.history import Event, Swap
from switchyard.tables.logs import tell
from switchyard.tables.status import ACTIVE, Status, flip, read_status
from switchyard.tables.writer import claim_attempt

LOOK_SECONDS = 0.5
STATUS_SECONDS = 1.0
LAG_SECONDS = 2.0
log = logging.getLogger("switchyard.driver")


class End(enum.Enum):
    """How an attempt ended, with its exit code."""

    RETIRED = 0
    FENCED = 75
    STOPPED = 143


class Place(enum.Enum):
    """Where a generation stands against the active one."""

    BUILDING = "building"
    ACTIVE = "active"
    REPLACED = "replaced"


def run_generation(settings: Settings, spec: GenerationSpec, kafka: Mapping[str, str]) -> End:
    layout = settings.layout
    if history.is_retired(history.read_history(layout), spec.generation):
        log.info("generation %s has retired; there is nothing to do", spec.generation)
        return End.RETIRED
    swap = _known_swap(layout, spec)
    attempt = claim_attempt(layout, spec.generation)
    if history.is_retired(history.read_history(layout), spec.generation):
        raise FencedError(f"generation {spec.generation} retired while attempt {attempt} was starting")
    history.record(layout, swap, Event.STARTING, f"attempt {attempt}")
    tell(layout, f"attempt {attempt} is starting", generation=spec.generation, swap_id=swap.swapId)
    stop = threading.Event()
    with _announced(settings, spec.generation, stop):
        runner = BatchRunner(settings, spec, attempt)
        runner.report_alive()
        spark = start_session(settings, f"switchyard generation {spec.generation}")
        rows = generation_rows(spark, spec, to_java(kafka), settings.max_offsets_per_trigger)
        query = (
            rows.writeStream.queryName(f"generation-{spec.generation}")
            .foreachBatch(runner)
            .option("checkpointLocation", layout.checkpoint(spec.generation))
            .trigger(processingTime=f"{settings.trigger_seconds} seconds")
            .start()
        )
        with TopicReader(kafka) as reader, contextlib.closing(_Stopper(query, runner)):
            return _Watch(settings, swap, runner, query, reader, stop).until_end()


def _known_swap(layout: Layout, spec: GenerationSpec) -> Swap:
    """The swap of a generation; one started by hand gets a request of its own, so that it has a history too."""
    rows = history.read_history(layout)
    known = history.find_swap(rows, spec.generation)
    if known is not None:
        return _reopened(layout, rows, known)
    swap = Swap(
        f"by-hand-{spec.generation}",
        spec.generation,
        spec.usersTopic,
        spec.accountsTopic,
        spec.joinType,
        spec.start,
        "hand",
    )
    history.record(layout, swap, Event.REQUESTED, "the job was started by hand")
    return swap


def _reopened(layout: Layout, rows: list[store.Row], swap: Swap) -> Swap:
    """A swap that was given up and is started again by hand is a new request, with an outcome of its own."""
    again = replace(swap, swapId=history.open_swap_id(rows, swap.swapId))
    if again != swap:
        history.record(layout, again, Event.REQUESTED, f"{swap.swapId} is started again")
    return again


@contextlib.contextmanager
def _announced(settings: Settings, generation: int, stop: threading.Event) -> Iterator[None]:
    """While it lasts, the process id is on disk and SIGTERM asks for an orderly end."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    path: Path = settings.workspace.driver_pid(generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(os.getpid()))
    try:
        yield
    finally:
        if path.exists() and path.read_text() == str(os.getpid()):
            path.unlink()


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
    """The main loop's memory."""

    settings: Settings
    swap: Swap
    runner: BatchRunner
    query: StreamingQuery
    reader: TopicReader
    stop: threading.Event
    is_ready: bool = False
    is_applied: bool = False
    lingers_since: float | None = None
    _due: dict[str, float] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return self.settings.layout

    @property
    def generation(self) -> int:
        return self.runner.spec.generation

    def until_end(self) -> End:
        while True:
            if self.stop.wait(LOOK_SECONDS):
                self._tell("asked to stop: the driver ends after its batch")
                return End.STOPPED
            if end := self._look():
                return end

    def _look(self) -> End | None:
        if self.runner.fenced is not None:
            return self._end_fenced(self.runner.fenced)
        if not self.query.isActive:
            raise SwitchyardError(f"the stream has stopped: {self.query.exception()}")
        if time.monotonic() - self.runner.reported_at > self.settings.heartbeat_seconds:
            try:
                self._check_fence_when_idle()
            except FencedError as error:
                return self._end_fenced(error)
            self.runner.report_alive()
        if self._is_due("lag", LAG_SECONDS):
            self._ask_lag()
        if self._is_due("status", STATUS_SECONDS):
            return self._act()
        return None

    def _check_fence_when_idle(self) -> None:
        """A batch checks by itself; in between nobody else would notice that a newer attempt has taken over."""
        if self.runner.busy.acquire(blocking=False):
            try:
                self.runner.sink.check_fence()
            finally:
                self.runner.busy.release()

    def _is_due(self, what: str, every_seconds: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_seconds
        return True

    def _ask_lag(self) -> None:
        """A broker that does not answer now will show in the lag's absence, not stop the stream."""
        spec = self.runner.spec
        try:
            self.runner.broker_ends = {
                topic: self.reader.bounds(topic)[1] for topic in (spec.usersTopic, spec.accountsTopic)
            }
        except SwitchyardError as error:
            log.warning("%s", error)
            self.runner.broker_ends = {}

    def _act(self) -> End | None:
        status = read_status(self.layout)
        place = self._place(status)
        if place is Place.BUILDING:
            self._advance(status)
        if place is Place.ACTIVE and not self.is_applied:
            self._confirm_applied()
        if place is not Place.REPLACED:
            self.lingers_since = None
            return None
        return self._linger(status)

    def _place(self, status: Status | None) -> Place:
        if status is None:
            return Place.BUILDING
        if status.generation == self.generation:
            return Place.ACTIVE
        rows = history.read_history(self.layout)
        later = history.is_asked_later(rows, self.generation, status.generation)
        return Place.BUILDING if later else Place.REPLACED

    def _advance(self, status: Status | None) -> None:
        """Ready after the first batch, once the end that was seen at the request is reached; then the flip."""
        position, spec = self.runner.position, self.runner.spec
        if position is None or not has_reached(position.end, spec.readyOffsets):
            return
        if not self.is_ready:
            self.is_ready = True
            if history.record(self.layout, self.swap, Event.READY):
                self._tell(f"generation {self.generation} is ready")
        wanted = Status(
            generation=self.generation,
            usersTopic=spec.usersTopic,
            accountsTopic=spec.accountsTopic,
            joinType=spec.joinType,
            lastApplied=datetime.now(UTC),
            state=ACTIVE,
            epoch=0,
        )
        if flip(self.layout, status.epoch if status else 0, wanted):
            self._confirm_applied()

    def _confirm_applied(self) -> None:
        """Also by a later attempt: the one that flipped may have died before it could say so."""
        self.is_applied = True
        if history.record(self.layout, self.swap, Event.APPLIED, f"generation {self.generation} is active"):
            self._tell(f"flipped: generation {self.generation} is active")

    def _linger(self, status: Status | None) -> End | None:
        """A generation that was active goes on for a while; one that never was has nothing to wait for."""
        by = f"replaced by generation {status.generation}" if status else "replaced"
        now = time.monotonic()
        was_active = history.has_event(history.read_history(self.layout), self.swap, Event.APPLIED)
        if was_active and self.lingers_since is None:
            self.lingers_since = now
            history.record(self.layout, self.swap, Event.LINGERING, by)
            self._tell(f"generation {self.generation} was {by} and lingers {self.settings.linger_seconds:g} s")
        if self.lingers_since is not None and now - self.lingers_since < self.settings.linger_seconds:
            return None
        self._retire(by)
        return End.RETIRED

    def _retire(self, by: str) -> None:
        _Stopper(self.query, self.runner).close()
        with self.runner.busy:
            history.record(self.layout, self.swap, Event.SUPERSEDED, f"{by} before it was active")
            history.record(self.layout, self.swap, Event.RETIRED, by)
            claim_attempt(self.layout, self.generation)
        self._tell(f"generation {self.generation} has retired")

    def _end_fenced(self, error: FencedError) -> End:
        self._tell(f"fenced out: {error}")
        return End.FENCED

    def _tell(self, msg: str) -> None:
        tell(self.layout, msg, generation=self.generation, swap_id=self.swap.swapId)
