"""The foreachBatch of a generation: chooses how a micro-batch is committed, and reports it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, reduce
from operator import add

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from switchyard import offsets
from switchyard.errors import FencedError, LostRaceError, SwitchyardError, UnwritableError
from switchyard.layout import BIG_TABLES, Layout
from switchyard.offsets import Offsets
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.stream.bulk import commit_bulk
from switchyard.stream.compaction import sort_key
from switchyard.stream.failures import explain_failure
from switchyard.stream.offset_log import read_batch_end
from switchyard.stream.query import BATCH_COLUMNS
from switchyard.stream.session import MAX_RESULT_SIZE
from switchyard.swap.fan_out import FanOut
from switchyard.tables import store
from switchyard.tables.forgotten import Marks
from switchyard.tables.joined_changes import BATCH_SCHEMA
from switchyard.tables.logs import tell
from switchyard.tables.merging import FAN_IN, merge_small
from switchyard.tables.progress import Progress, newest_progress, report
from switchyard.tables.sink import BatchSink, Counts

LOG_SECONDS = 10.0
MOST_TASK_ROWS = 64_000
MOST_TASK_BYTES = 12 * 2**20
"""What a task may send to the driver: so many rows, of the nth row at most the nth part of so many bytes."""
ROW_BYTES = 64
"""Of the numbers and times in a row"""
OVERFLOW = "overflow"
MOST_MERGED_BYTES = 4 * 2**20
"""To revise a row is to write its file again, so what a driver merges stays small. Maintenance makes larger files."""
log = logging.getLogger("switchyard.driver")


@dataclass(frozen=True)
class Position:
    """Where a generation stands after a batch: the end of the batch and the Delta versions that belong to it."""

    batch_id: int
    end: Offsets
    versions: dict[str, int]


def collect_if_it_fits(rows: DataFrame) -> pa.Table | None:
    """The rows of a batch in the driver; None when they are more than it may take.

    A task holds all that it sends, so a few records with millions of pairs must be stopped there: by rows, and by bytes
    that get fewer the more rows there are. Spark's own bound counts what has arrived.
    """
    try:
        table = rows.select("*", _index().alias("index")).where(F.col("index") <= MOST_TASK_ROWS)
        collected = table.select(*_collected_columns()).toArrow()
    except Py4JJavaError as error:
        if MAX_RESULT_SIZE not in str(error):
            raise
        collected = None
    if collected is None or pc.any(pc.equal(collected["kind"], OVERFLOW)).as_py():
        log.warning("a small batch made too many pairs for the driver; the executors write it")
        return None
    return collected.cast(BATCH_SCHEMA)


def _index() -> Column:
    """The number of a row within its task."""
    return F.monotonically_increasing_id().bitwiseAND(F.lit(2**33 - 1))


@cache
def _collected_columns() -> list[Column]:
    """The columns of a batch; a row that is too much for the driver is only said to be one."""
    texts = [name for name, kind in BATCH_COLUMNS.items() if kind == "string" and name != "kind"]
    size = reduce(add, [F.coalesce(F.octet_length(name), F.lit(0)) for name in texts], F.lit(ROW_BYTES))
    is_over = (F.col("index") == MOST_TASK_ROWS) | (F.col("index") * size > MOST_TASK_BYTES)
    instead = {"kind": F.lit(OVERFLOW)} | {name: F.lit(None) for name in texts}
    return [
        F.when(is_over, instead[name]).otherwise(F.col(name)).alias(name) if name in instead else F.col(name)
        for name in BATCH_COLUMNS
    ]


def position_of(last: Progress | None) -> Position | None:
    """What an earlier attempt reported last: a batch that it left half done is not part of it."""
    if last is None or last.endOffsets is None:
        return None
    return Position(last.batchId, offsets.from_json(last.endOffsets), last.versions())


def _fan_out_of(spec: GenerationSpec, last: Progress | None) -> FanOut:
    if last is None or last.endOffsets is None:
        return FanOut()
    return FanOut(offsets.count_records(spec.startOffsets, offsets.from_json(last.endOffsets)), last.rowsPerEvent)


def most_merged_bytes(settings: Settings) -> int:
    """The size of the largest files that a driver makes of small ones."""
    return min(settings.keeping.file_bytes, MOST_MERGED_BYTES)


class BatchRunner:
    """Called by Spark for each micro-batch; the main thread reads `position` and takes `busy` to stop between two."""

    def __init__(self, settings: Settings, spec: GenerationSpec, attempt: int) -> None:
        self.spec = spec
        self.attempt = attempt
        self.layout: Layout = settings.layout
        self.sink = BatchSink(settings.layout, spec, attempt)
        self._progress = store.open_table(settings.layout, "progress")
        self._first_versions = self.sink.versions()
        self.busy = threading.Lock()
        self.stopping = threading.Event()
        # While a generation is built, each batch waits until the main thread has looked at the one before it.
        self.is_building = False
        self.is_catching_up = False
        """Whether a swap waits for records that this driver has still to read, also when the broker tells no lag"""
        self.looked = threading.Event()
        self.looked.set()
        self.begun: tuple[Offsets, Marks] | None = None
        """Where the first batch ends and which marks it goes by, as soon as that is known"""
        # A heartbeat must not come after a batch's row and tell the position before it.
        self._reporting = threading.Lock()
        last = newest_progress(self.layout, spec.generation)
        self.position = position_of(last)
        self._fan_out = _fan_out_of(spec, last)
        self.fenced: FencedError | None = None
        self.failure: str | None = None
        self._forgetting: threading.Thread | None = None
        self.reported_at = 0.0
        self.broker_ends: Offsets = {}
        self.moved_at = time.monotonic()
        """When the work last moved, by a clock that only goes forward"""
        self.executors: int | None = None
        self._logged_at = 0.0
        self._small_batch_records = settings.small_batch_records
        self._most_rows = settings.most_batch_rows
        self._merged_bytes = most_merged_bytes(settings)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """A batch that Spark begins while the query is being stopped must give way, or both would wait for ever."""
        while not self.looked.wait(0.1) or not self.busy.acquire(timeout=0.1):
            self._give_way()
        try:
            self._give_way()
            self._run(rows, batch_id)
            if self.is_building:
                self.looked.clear()
        except FencedError as error:
            self.fenced = error
            raise
        except SwitchyardError:
            raise
        except Exception as error:
            # Spark writes what is raised here into its log, with the text of the error.
            log.error("batch %s failed", batch_id, exc_info=error)
            self.failure = f"batch {batch_id} failed: {explain_failure(error)}"
            raise SwitchyardError(self.failure) from None
        finally:
            self.busy.release()

    def _give_way(self) -> None:
        if self.stopping.is_set():
            raise SwitchyardError("the driver is stopping; this batch is for the next attempt")

    def _run(self, rows: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        start, end = self._bounds(batch_id)
        self.sink.check_fence()
        if not self.sink.has_begun(batch_id):
            self._tell_forgotten(self.sink.forget())
        records = offsets.count_records(start, end)
        is_small = records <= self._small_batch_records
        if records and batch_id == 0:
            self.begun = (end, self.sink.marks())
        table = collect_if_it_fits(rows) if is_small else None
        if table is not None:
            counts = self.sink.commit_arrow(batch_id, table)
        else:
            counts = commit_bulk(self.sink, batch_id, rows, self._most_rows)
        seconds = time.monotonic() - began
        with self._reporting:
            self.position = Position(batch_id, end, self.sink.versions())
            self._fan_out.add(records, counts.pairs)
            self.moved_at = time.monotonic()
            self._write_report(counts, seconds, offsets.to_json(start))
        if batch_id % FAN_IN == 0:
            self._merge_small_files()
        if time.monotonic() - self._logged_at > LOG_SECONDS:
            self._logged_at = time.monotonic()
            log.info("batch %s: %s records in %.1f s", batch_id, counts.input_rows, seconds)

    def _merge_small_files(self) -> None:
        """After the batch is visible, so that it costs no row any time. Who loses a race merges more next time."""
        generation = self.spec.generation
        try:
            for name in BIG_TABLES:
                table, key = self.sink.writers[name].refresh(), sort_key(name, self.spec.joinType)
                merge_small(self.layout, table, name, generation, key, self._merged_bytes)
            self._progress.update_incremental()
            merge_small(self.layout, self._progress, "progress", generation, ["at"], self._merged_bytes)
        except (LostRaceError, UnwritableError) as error:
            log.warning("small files stay as they are for now: %s", error)

    def _bounds(self, batch_id: int) -> tuple[Offsets, Offsets]:
        checkpoint = self.layout.checkpoint(self.spec.generation)
        topics = (self.spec.usersTopic, self.spec.accountsTopic)
        end = read_batch_end(checkpoint, batch_id, topics)
        if batch_id == 0:
            return self.spec.startOffsets, end
        return read_batch_end(checkpoint, batch_id - 1, topics), end

    def forget_soon(self) -> None:
        """For topics that are quiet. In a thread of its own: it may take long, and the main thread shows life."""
        if self._forgetting is None or not self._forgetting.is_alive():
            self._forgetting = threading.Thread(target=self._forget_in_thread, daemon=True)
            self._forgetting.start()

    def _forget_in_thread(self) -> None:
        with self.busy:
            try:
                if not self.stopping.is_set():
                    self._forget_between_batches()
            except FencedError as error:
                self.fenced = error
            except Exception as error:
                log.error("forgetting failed", exc_info=error)
                self.failure = f"forgetting failed: {explain_failure(error)}"

    def _forget_between_batches(self) -> None:
        """A batch that was left half done is replayed first."""
        batch_id = self.position.batch_id if self.position else -1
        if self.sink.has_begun(batch_id + 1):
            return
        lost = self.sink.forget()
        if lost is None:
            return
        self._tell_forgotten(lost)
        with self._reporting:
            self._first_versions = self.sink.versions()
            if self.position:
                self.position = replace(self.position, versions=self.sink.versions())

    def _tell_forgotten(self, lost: dict[str, int] | None) -> None:
        if lost is not None:
            rows = ", ".join(f"{count} of {name}" for name, count in lost.items())
            tell(self.layout, f"forgotten: {rows}", generation=self.spec.generation)

    def report_alive(self) -> None:
        """A heartbeat, also in the middle of a batch: the last position once more."""
        with self._reporting:
            self._write_report(Counts(0, 0, 0), 0.0, None)

    def _write_report(self, counts: Counts, seconds: float, start: str | None) -> None:
        position = self.position or Position(-1, {}, self._first_versions)
        versions, now = position.versions, datetime.now(UTC)
        report(
            self.layout,
            Progress(
                generation=self.spec.generation,
                attempt=self.attempt,
                batchId=position.batch_id,
                at=now,
                inputRows=counts.input_rows,
                rowsPerSecond=counts.input_rows / seconds if seconds else 0.0,
                batchMs=int(seconds * 1000),
                lag=self.lag,
                usersVersion=versions["users"],
                accountsVersion=versions["accounts"],
                joinedVersion=versions["joined"],
                rejectsVersion=versions["rejects"],
                rejectedRows=counts.rejected_rows,
                tombstones=counts.tombstones,
                startOffsets=start,
                endOffsets=offsets.to_json(position.end) if position.end else None,
                rowsPerEvent=self._fan_out.average,
                recentRowsPerEvent=self._fan_out.recent,
                movedAt=now - timedelta(seconds=time.monotonic() - self.moved_at),
                executors=self.executors,
            ),
            self._progress,
        )
        self.reported_at = time.monotonic()

    @property
    def lag(self) -> int | None:
        """How many records wait; None while the broker does not answer."""
        if not self.broker_ends:
            return None
        end = self.position.end if self.position else self.spec.startOffsets
        return max(0, offsets.count_records(end, self.broker_ends))
