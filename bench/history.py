"""History on two topics, and the ways to read it in one warm session: an append, the stream's joins, the backfill.

Each first reads a small pair of other topics, so that none pays for the start or for code that was never run; the joins
of the stream, which share nearly all of it, do so once, and the backfill, which comes after them, does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.append import start_appending
from bench.measure import tell
from bench.stage import fill_topics, running_broker, start_spark
from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.stream.backfill import run_backfill
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.swap.backfills import BackfillHandler, backfill_id, require_snapshot
from switchyard.swap.generations import keep_spec, resolve_spec
from switchyard.swap.history import Event
from switchyard.tables.writer import claim_attempt
from tests.second_oracle import count_differences, count_events

WARM_UP_EVENTS = 100_000
"""More than a small batch, so that all sides have run the code that is measured."""
TOPICS, WARM_UP_TOPICS = ("users", "accounts"), ("warm-users", "warm-accounts")


@dataclass(frozen=True)
class Reading:
    """One way's place: its own root, the session, and the topics it reads."""

    spark: SparkSession
    settings: Settings
    kafka: dict[str, str]
    users: str
    accounts: str


Way = Callable[[Reading], None]


@dataclass(frozen=True)
class History:
    folder: Path
    kafka: dict[str, str]
    events: int
    spark: SparkSession

    def measure(self, name: str, way: Way, join_type: str | None = None, is_warm: bool = False) -> float:
        """Return the seconds that a way takes. What it joins, if anything, must be the batch join of all events."""
        if not is_warm:
            way(self._reading(f"warm-{name}", WARM_UP_TOPICS))
        reading = self._reading(name, TOPICS)
        began = time.monotonic()
        way(reading)
        seconds = time.monotonic() - began
        rows = f", {self._check(reading.settings.layout, join_type)} joined rows" if join_type else ""
        tell(f"{name}: {seconds:.1f} s{rows}")
        return seconds

    def _reading(self, name: str, topics: tuple[str, str]) -> Reading:
        return Reading(self.spark, Settings(root=str(self.folder / name)), self.kafka, *topics)

    def _check(self, layout: Layout, join_type: str) -> int:
        """By another engine than the one that is measured; it takes a fraction of the time of an audit."""
        stored, positions = count_events(layout)
        if not stored == positions == self.events:
            raise SystemExit(
                f"{layout.root}: {stored} events at {positions} positions, of {self.events} that were sent"
            )
        rows, missing, extra = count_differences(layout, join_type)
        if missing or extra:
            raise SystemExit(f"{layout.root}: of {rows} joined rows {extra} are too many, and {missing} are missing")
        return rows


@contextmanager
def prepared_history(events: int) -> Iterator[History]:
    """Of both topics together; half are users, half accounts."""
    with running_broker() as (folder, kafka):
        bootstrap = kafka["bootstrap.servers"]
        tell(f"filling the topics with {events} events")
        fill_topics(bootstrap, WARM_UP_EVENTS, *WARM_UP_TOPICS)
        fill_topics(bootstrap, events, *TOPICS)
        spark = start_spark(Settings(root=str(folder / "none")))
        yield History(folder, kafka, events, spark)
        spark.stop()


def append(reading: Reading) -> None:
    """Both topics in one query each, side by side, as one would without a join."""
    topics = {"users": reading.users, "accounts": reading.accounts}
    for query in start_appending(reading.spark, reading.settings, reading.kafka, topics, availableNow=True):
        query.awaitTermination()


def stream(reading: Reading, join_type: str) -> None:
    """Run a generation from `earliest` to the end of the topics, in its usual micro-batches."""
    settings = reading.settings
    with TopicReader(reading.kafka) as reader:
        target = Target(reading.users, reading.accounts, join_type)
        spec = resolve_spec(reader, target, "earliest", generation=1)
    keep_spec(settings.layout, spec)
    runner = BatchRunner(settings, spec, claim_attempt(settings.layout, 1))
    rows = generation_rows(reading.spark, spec, reading.kafka, settings.max_offsets_per_trigger)
    query = rows.writeStream.foreachBatch(runner).option("checkpointLocation", settings.layout.checkpoint(1))
    query.trigger(availableNow=True).start().awaitTermination()


def backfill(reading: Reading) -> None:
    """Make a left join as one batch, with its data gate: from the order to the finished snapshot."""
    fields = {"users_topic": reading.users, "accounts_topic": reading.accounts, "join_type": "left"}
    with TopicReader(reading.kafka) as reader:
        BackfillHandler(reading.settings, reader).order(fields, backfill_id("bench"), "bench")
    snapshot = require_snapshot(reading.settings, 1)
    outcome = run_backfill(reading.settings, snapshot, reading.kafka, lambda: reading.spark)
    if outcome.event is not Event.PLANNED:
        raise SystemExit(f"the backfill is {outcome.event}: {outcome.detail}")
