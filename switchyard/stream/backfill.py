"""Write a snapshot: the join of a range of two topics, as a batch, into a new generation.

Each topic is read once; the join reads the files just written. What is written is noted beside the spec, table by
table, so that an attempt that comes after a crash goes on where the last one ended. At the end the files are committed
through the fenced writer, and one progress row ties them together as for a micro-batch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial, reduce
from typing import Any

from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from switchyard.errors import FencedError, InputError, SwitchyardError
from switchyard.joins import JOINS
from switchyard.kafka.client_settings import to_java
from switchyard.kafka.topics import TopicReader
from switchyard.offsets import count_records, to_json
from switchyard.records import SIDES, Side
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.stream.attempt import End
from switchyard.stream.audit import read_paths
from switchyard.stream.bulk import TOO_MANY, count_rows, end_at, overwrite_folder, say_too_many, write_files
from switchyard.stream.decode import decode
from switchyard.stream.failures import explain_failure
from switchyard.stream.gate import examine
from switchyard.stream.job_progress import JobProgress
from switchyard.stream.pid_file import stoppable
from switchyard.stream.query import read_range
from switchyard.swap import retirement_rules, transitions
from switchyard.swap.backfills import JOB_LOG_HINT, log_failure, settle_snapshot
from switchyard.swap.history import FINISHED, Entry, Event, Request
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import open_history
from switchyard.swap.ranges import check_held
from switchyard.tables import files
from switchyard.tables.folders import Folder
from switchyard.tables.logs import write_log
from switchyard.tables.progress import Progress, batches, report
from switchyard.tables.schemas import FILE_SCHEMAS
from switchyard.tables.sink import BatchSink
from switchyard.tables.writer import claim_attempt

BATCH_ID = 0
"""A snapshot is one batch."""
RECORDS_A_TASK = 250_000


class GivenUpError(SwitchyardError):
    """The snapshot cannot be finished, however often it is tried."""


def run_backfill(
    settings: Settings, spec: GenerationSpec, kafka: Mapping[str, str], start_spark: Callable[[], SparkSession]
) -> Entry:
    """Write a snapshot unless it is finished; return the outcome. Raise what may pass by trying again."""
    history = open_history(settings.layout)
    snapshot = history.ledger().snapshots.get(spec.generation)
    if snapshot is None:
        raise InputError(f"nobody has ordered a backfill into generation {spec.generation}")
    if (outcome := history.ledger().outcomes.get(snapshot.swapId)) is not None:
        return outcome
    # To end at once loses nothing: the next attempt goes on with what was noted.
    with stoppable(settings, spec.generation, partial(sys.exit, End.STOPPED.value)):
        attempt = claim_attempt(settings.layout, spec.generation)
        if not transitions.note(history, snapshot.entry(Event.STARTING, f"attempt {attempt}")):
            text = f"the backfill of generation {spec.generation} goes on: attempt {attempt}"
            write_log(settings.layout, text, generation=spec.generation, swap_id=snapshot.swapId)
        try:
            with TopicReader(kafka) as reader:
                detail = _SnapshotJob(settings, spec, kafka, history, snapshot, attempt, reader, start_spark).run()
        except (GivenUpError, InputError) as error:
            return settle_snapshot(settings, history, snapshot, Event.FAILED, str(error))
        except FencedError:
            raise
        except Exception as error:
            log_failure(settings.layout, snapshot, attempt, explain_failure(error, JOB_LOG_HINT))
            raise
        return settle_snapshot(settings, history, snapshot, FINISHED, detail)


@dataclass(frozen=True)
class Staged:
    """Files of one table that are written and not committed yet; `rejects` belong to another table."""

    paths: list[str] = field(default_factory=list)
    rows: int = 0
    rejects: list[str] = field(default_factory=list)
    rejected: int = 0
    tombstones: int = 0


@dataclass
class _SnapshotJob:
    settings: Settings
    spec: GenerationSpec
    kafka: Mapping[str, str]
    history: HistoryStore
    request: Request
    attempt: int
    reader: TopicReader
    start_spark: Callable[[], SparkSession]

    def __post_init__(self) -> None:
        layout = self.settings.layout
        self.sink = BatchSink(layout, self.spec, self.attempt)
        self.notes = Folder.at(layout.checkpoint(self.spec.generation))
        self.records = count_records(self.spec.startOffsets, self.spec.readyOffsets)

    def run(self) -> str:
        """Write the rows and prove them; return what they are, in plain words."""
        if not batches(self.settings.layout, self.spec.generation):
            self._check_held()
        self.spark = self._tune(self.start_spark())
        self.job_progress = JobProgress(self.spark, self._log)
        progress = next(iter(batches(self.settings.layout, self.spec.generation)), None)
        if progress is None:
            try:
                progress = self._write()
            except SwitchyardError:
                raise
            except Exception:
                # Kafka may have deleted what was to be read; that is worth a clear word.
                self._check_held()
                raise
        verdict = examine(self.spark, self.settings.layout, self.spec, None, self.settings.gate_records)
        if not verdict.is_clean:
            raise GivenUpError(f"the data gate is shut: {verdict.describe()}")
        return (
            f"{progress.inputRows} records, {progress.rowsPerSecond:.0f} a second, {progress.rejectedRows} rejected; "
            f"{verdict.describe()}"
        )

    def _check_held(self) -> None:
        check_held(self.spec.startOffsets, {topic: self.reader.bounds(topic) for topic in self.spec.startOffsets})

    def _tune(self, spark: SparkSession) -> SparkSession:
        """Return a separate session: settings for micro-batches of a second do not suit a day of history."""
        session = spark.newSession()
        tasks = max(self.settings.shuffle_partitions, -(-self.records // RECORDS_A_TASK))
        session.conf.set("spark.sql.shuffle.partitions", str(tasks))
        session.conf.set("spark.sql.adaptive.enabled", "true")
        return session

    def _write(self) -> Progress:
        began = time.monotonic()
        staged = {side.plural: self._stage(side.plural, partial(self._write_topic, side)) for side in SIDES}
        staged["rejects"] = self._stage("rejects", lambda: self._write_rejects(staged))
        staged["joined"] = self._stage("joined", lambda: self._write_joined(staged))
        for name, table in staged.items():
            self.sink.commit_files(name, BATCH_ID, self._describe(name, table.paths))
        # Kafka still has what was forgotten here. Nobody reads these rows before they are reported.
        self.sink.carry_out_marks()
        progress = self._report(staged, time.monotonic() - began)
        for side in SIDES:
            for path in staged[side.plural].rejects:
                self.sink.writers[side.plural].folder.delete_file(path)
        return progress

    def _stage(self, name: str, write: Callable[[], Staged]) -> Staged:
        """Write the files of a table unless an earlier attempt has; a note says that they are complete."""
        with suppress(FileNotFoundError):
            return Staged(**json.loads(self.notes.read_bytes(f"{name}.json")))
        writer = self.sink.writers[name]
        if not writer.has_batch(BATCH_ID):
            writer.folder.delete_folder(files.generation_folder(self.spec.generation))
        staged = write()
        self._check_wanted()
        self.notes.write(f"{name}.json", json.dumps(asdict(staged)).encode())
        return staged

    def _check_wanted(self) -> None:
        self.sink.check_fence()
        if retirement_rules.must_stop(self.history.ledger(), self.request):
            raise FencedError(f"the backfill of generation {self.spec.generation} was given up")

    def _write_topic(self, side: Side) -> Staged:
        spec, topic = self.spec, self.spec.topic_of(side)
        records = count_records({topic: spec.startOffsets[topic]}, {topic: spec.readyOffsets[topic]})
        if not records:
            return Staged()
        with self.job_progress.phase(f"reading {topic}", records):
            tasks = -(-records // RECORDS_A_TASK)
            kafka, folder = to_java(self.kafka), self.sink.writers[side.plural].folder
            rows = read_range(self.spark, topic, kafka, spec.startOffsets, spec.readyOffsets, tasks)
            place = f"{files.generation_folder(spec.generation)}/backfill-{self.attempt}"
            overwrite_folder(folder, place, columns_by_kind(decode(rows, side), side, topic), by="kind")
        kinds = {kind: folder.list_parquet(f"{place}/kind={kind}") for kind in ("valid", "reject", "tombstone")}
        counts = {kind: sum(map(count_rows, self._describe(side.plural, paths))) for kind, paths in kinds.items()}
        for path in kinds["tombstone"]:
            folder.delete_file(path)
        return Staged(kinds["valid"], counts["valid"], kinds["reject"], counts["reject"], counts["tombstone"])

    def _write_rejects(self, staged: Mapping[str, Staged]) -> Staged:
        parts = [
            self._read(side.plural, staged[side.plural].rejects)
            .withColumnsRenamed({column: name for name, column in reject_columns(side).items()})
            .select(*FILE_SCHEMAS["rejects"].names)
            for side in SIDES
            if staged[side.plural].rejects
        ]
        if not parts:
            return Staged()
        return self._staged_files(write_files(self.sink, "rejects", BATCH_ID, reduce(DataFrame.union, parts)))

    def _write_joined(self, staged: Mapping[str, Staged]) -> Staged:
        """Write the join as `joins.py` defines it; give up one that explodes before it has filled the disk."""
        # The stream never revises these rows, so they need no order.
        left, right = (self._read(side.plural, staged[side.plural].paths) for side in SIDES)
        with self.job_progress.phase("joining", sum(staged[side.plural].rows for side in SIDES)):
            rows, most = JOINS[self.spec.joinType](left, right, self.spec.stateRetention), self.settings.most_batch_rows
            try:
                written = write_files(self.sink, "joined", BATCH_ID, end_at(rows, most))
            except Exception as error:
                if TOO_MANY not in str(error):
                    raise
                raise GivenUpError(say_too_many("a task of the join", most, "take a smaller range")) from None
            return self._staged_files(written)

    def _staged_files(self, written: list[AddAction]) -> Staged:
        return Staged([action.path for action in written], sum(map(count_rows, written)))

    def _read(self, name: str, paths: list[str]) -> DataFrame:
        folder = self.sink.writers[name].folder
        return read_paths(self.spark, name, [folder.spark_uri(path) for path in paths])

    def _describe(self, name: str, paths: list[str]) -> list[AddAction]:
        folder = self.sink.writers[name].folder
        return [files.describe_file(folder, self.spec.generation, path) for path in paths]

    def _report(self, staged: Mapping[str, Staged], seconds: float) -> Progress:
        topics = [staged[side.plural] for side in SIDES]
        rejected, tombstones = sum(topic.rejected for topic in topics), sum(topic.tombstones for topic in topics)
        read = sum(topic.rows for topic in topics) + rejected + tombstones
        versions: dict[str, Any] = {f"{name}Version": version for name, version in self.sink.versions().items()}
        progress = Progress(
            generation=self.spec.generation,
            attempt=self.attempt,
            batchId=BATCH_ID,
            at=datetime.now(UTC),
            inputRows=read,
            rowsPerSecond=read / seconds,
            batchMs=int(seconds * 1000),
            lag=0,
            rejectedRows=rejected,
            tombstones=tombstones,
            startOffsets=to_json(self.spec.startOffsets),
            endOffsets=to_json(self.spec.readyOffsets),
            **versions,
        )
        report(self.settings.layout, progress)
        return progress

    def _log(self, text: str) -> None:
        write_log(self.settings.layout, text, generation=self.spec.generation, swap_id=self.request.swapId)


def reject_columns(side: Side) -> dict[str, str]:
    """Name the columns that hold the value and the reason of a rejected record, which has no fields."""
    texts = [name for name, kind in side.values.items() if kind == "string"]
    return {"value": side.key, "reason": texts[0]}


def columns_by_kind(events: DataFrame, side: Side, topic: str) -> DataFrame:
    """Give decoded records of each kind the columns of their table, so that one pass over the topic writes them all.

    The rows of rejected records go to separate files, which are never part of this table.
    """
    columns, is_reject = reject_columns(side), F.col("kind") == "reject"
    sources = {columns["value"]: "text", columns["reason"]: "reason"}
    given = {name: F.when(is_reject, F.col(source)).otherwise(F.col(name)) for name, source in sources.items()}
    return events.withColumns({**given, "topic": F.lit(topic)}).select(*FILE_SCHEMAS[side.plural].names, "kind")
