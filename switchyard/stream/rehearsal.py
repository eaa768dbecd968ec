"""The rehearsal of a spare driver: the real stream, sink and data gate, in a root that is removed afterwards.

It loads and compiles what a generation needs, and proves that this driver can do the work: on the newest records of the
active topics, or on synthetic ones when there are none or the broker does not answer. It uses the Spark session of the
later generation, because much is built at a session's first use. Their queries share nothing else.
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from switchyard.deadline import Deadline
from switchyard.drivers.spares import MOST_REHEARSAL_SECONDS
from switchyard.errors import SwitchyardError
from switchyard.kafka.client_settings import to_java
from switchyard.kafka.topics import TopicReader
from switchyard.layout import REHEARSAL
from switchyard.object_store import to_hadoop
from switchyard.offsets import Offsets, count_records, has_reached
from switchyard.policies import Target
from switchyard.records import LEFT, RIGHT, Side
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.stream.gate import GateVerdict, examine
from switchyard.stream.query import batch_rows, generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.swap.log_messages import open_history
from switchyard.tables.folders import Folder
from switchyard.tables.logs import write_log
from switchyard.tables.writer import claim_attempt

BATCHES = 3
BATCH_RECORDS = 40
NEWEST_RECORDS, NEWEST_BATCH_RECORDS = 400, 50
"""Records that are read of each active topic, and how many of them in a batch"""
USERS, OWNERS = 17, 11
"""Synthetic people, and how many of them have an account"""
GATE_RECORDS = 100_000
"""More than a rehearsal reads: all rows are compared, whatever the setting says."""
PULSE_SECONDS = 1.0
SYNTHETIC_SPEC = GenerationSpec(
    generation=1,
    usersTopic="users",
    accountsTopic="accounts",
    joinType="left",
    start="earliest",
    startOffsets={"users": {0: 0}, "accounts": {0: 0}},
    readyOffsets={topic: {0: BATCHES * BATCH_RECORDS} for topic in ("users", "accounts")},
    requestedAt=datetime(2026, 1, 1, tzinfo=UTC),
)
log = logging.getLogger("switchyard.driver")


class _SyntheticRunner(BatchRunner):
    """A runner for synthetic records: their offsets are not in Spark's offset log, but follow from the batch id."""

    def _bounds(self, batch_id: int) -> tuple[Offsets, Offsets]:
        start, end = batch_id * BATCH_RECORDS, (batch_id + 1) * BATCH_RECORDS
        return {"users": {0: start}, "accounts": {0: start}}, {"users": {0: end}, "accounts": {0: end}}


def rehearse(
    spark: SparkSession, settings: Settings, place: Path, kafka: Mapping[str, str], touch_pulse: Callable[[], None]
) -> None:
    """Raise when the rows that were written are not the batch join of the records."""
    # At each step it shows life: on a busy machine a rehearsal takes long, and the watchdog would end it.
    touch_pulse()
    with _scratch_root(spark, settings, place) as scratch:
        write_log(scratch.layout, "rehearsal")
        open_history(scratch.layout).ledger()
        target = open_history(settings.layout).status_row().target
        newest = _choose_newest(kafka, target) if kafka and target else None
        java_kafka, began = to_java(kafka) if newest else None, time.monotonic()
        spec = (newest or SYNTHETIC_SPEC).model_copy(update={"stateRetention": settings.state_retention})
        kind = BatchRunner if newest else _SyntheticRunner
        runner = kind(scratch, spec, claim_attempt(scratch.layout, spec.generation))
        if java_kafka is None:
            users, accounts = _synthetic_records(spark, USERS, LEFT), _synthetic_records(spark, OWNERS, RIGHT)
            rows = batch_rows(users, accounts, spec.joinType, spec.stateRetention)
            writer = rows.writeStream.trigger(processingTime="1 second")
        else:
            rows = generation_rows(spark, spec, java_kafka, NEWEST_BATCH_RECORDS)
            writer = rows.writeStream.trigger(availableNow=True)
        _stream(scratch, runner, writer, touch_pulse)
        proof = partial(examine, spark, scratch.layout, spec, java_kafka, GATE_RECORDS)
        verdict = _show_life_during(proof, touch_pulse)
    if not verdict.is_clean or not verdict.records:
        raise SwitchyardError(f"the rehearsal failed: {verdict.describe()}")
    log.info("rehearsed in %.1f s: %s", time.monotonic() - began, verdict.describe())


@contextmanager
def _scratch_root(spark: SparkSession, settings: Settings, place: Path) -> Iterator[Settings]:
    """Yield settings with another root: a local folder, or one below the root, where remote executors can write."""
    with TemporaryDirectory(prefix="rehearsal-", dir=place, ignore_cleanup_errors=True) as folder:
        if settings.layout.is_local and (spark.sparkContext.master or "").startswith("local"):
            yield settings.model_copy(update={"root": folder, "home": Path(folder)})
            return
        root = Folder.at(settings.layout.under())
        # There is one spare at a time, so what is here was left by one that was killed.
        root.delete_folder(REHEARSAL)
        try:
            yield settings.model_copy(update={"root": settings.layout.under(REHEARSAL), "home": Path(folder)})
        finally:
            try:
                root.delete_folder(REHEARSAL)
            except OSError as error:
                log.warning("the folder of the rehearsal stays until the next one: %s", error)


def _choose_newest(kafka: Mapping[str, str], target: Target) -> GenerationSpec | None:
    """Return a spec of the newest records of the active topics; None when there are none, or no broker answers."""
    try:
        with TopicReader(kafka) as reader:
            bounds = {topic: reader.bounds(topic) for topic in (target.usersTopic, target.accountsTopic)}
    except SwitchyardError as error:
        log.warning("rehearsed without the broker: %s", error)
        return None
    ends = {topic: next_offsets for topic, (_, next_offsets) in bounds.items()}
    starts = {
        topic: {part: max(first[part], end - NEWEST_RECORDS // len(ends[topic])) for part, end in ends[topic].items()}
        for topic, (first, _) in bounds.items()
    }
    if not count_records(starts, ends):
        return None
    update = {**vars(target), "generation": SYNTHETIC_SPEC.generation + 1}
    return SYNTHETIC_SPEC.model_copy(update=update | {"startOffsets": starts, "readyOffsets": ends})


def _show_life_during(work: Callable[[], GateVerdict], touch_pulse: Callable[[], None]) -> GateVerdict:
    """Run the data gate in a thread, as a generation's driver does: it may take long."""
    with ThreadPoolExecutor(1, thread_name_prefix="gate") as pool:
        verdict = pool.submit(work)
        while not concurrent.futures.wait([verdict], PULSE_SECONDS).done:
            touch_pulse()
        return verdict.result()


def _stream(settings: Settings, runner: BatchRunner, writer: DataStreamWriter, touch_pulse: Callable[[], None]) -> None:
    """Stream to the end that the spec names."""
    seen = runner.progress.position
    place = to_hadoop(settings.layout.checkpoint(runner.spec.generation))
    deadline = Deadline(MOST_REHEARSAL_SECONDS)
    query = writer.foreachBatch(runner).option("checkpointLocation", place).start()
    while query.isActive and not deadline.has_passed and not _is_done(runner):
        if runner.progress.position != seen:
            seen = runner.progress.position
            touch_pulse()
        time.sleep(0.05)
    touch_pulse()
    runner.stopping.set()
    with runner.busy:
        query.stop()
    if not _is_done(runner):
        raise SwitchyardError(f"the rehearsal failed: {runner.failure or query.exception() or 'it took too long'}")


def _is_done(runner: BatchRunner) -> bool:
    return runner.progress.position is not None and has_reached(runner.progress.position.end, runner.spec.readyOffsets)


def _synthetic_records(spark: SparkSession, people: int, side: Side) -> DataFrame:
    """Return records with the columns of a Kafka source, of so many people; each text is the name of its field."""
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=BATCH_RECORDS, numPartitions=1).load()
    person = F.concat(F.lit(f'{{"{side.key}": "person-'), (F.col("value") % people).cast("string"), F.lit('", '))
    rest = json.dumps({name: name for name, kind in side.values.items() if kind == "string"})[1:]
    value: Column = F.concat(person, F.lit(rest)).cast("binary")
    return numbers.select(
        value.alias("value"), "timestamp", F.lit(0).alias("partition"), F.col("value").alias("offset")
    )
