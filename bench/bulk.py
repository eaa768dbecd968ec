"""How fast a start from `earliest` reads history: each join, against Spark appending both topics to Delta without one.

Both run as streaming queries over the same topics with the same number of records in a batch and stop at their end. The
baseline parses the same fields with `from_json` and appends with Spark's own Delta writer. Every join must be clean by
the oracle.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import SparkSession

from bench.append import start_appending
from bench.measure import Figure, keep, tell
from bench.stage import fill_topics, running_broker, start_spark
from switchyard.generations import keep_spec, resolve_spec
from switchyard.kafka.topics import TopicReader
from switchyard.layout import JOIN_TYPES
from switchyard.settings import Settings
from switchyard.stream.audit import audit_at_newest
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.swaps import Target
from switchyard.tables.writer import claim_attempt

WARM_UP_EVENTS = 200_000
"""More than a small batch, so that both sides have run the code that is measured."""
TARGETS = {"left": 0.5, "inner": 0.5, "natural": 0.35, "asof": 0.35}
AGAINST = "Spark appending both topics, no join"


def append(spark: SparkSession, settings: Settings, kafka: dict[str, str], users: str, accounts: str) -> float:
    """Both topics in one query each, side by side, as one would without a join."""
    began = time.monotonic()
    topics = {"users": users, "accounts": accounts}
    for query in start_appending(spark, settings, kafka, topics, availableNow=True):
        query.awaitTermination()
    return time.monotonic() - began


def join(
    spark: SparkSession, settings: Settings, kafka: dict[str, str], users: str, accounts: str, join_type: str
) -> float:
    with TopicReader(kafka) as reader:
        spec = resolve_spec(reader, Target(users, accounts, join_type), "earliest", generation=1)
    keep_spec(settings.layout, spec)
    runner = BatchRunner(settings, spec, claim_attempt(settings.layout, 1))
    began = time.monotonic()
    rows = generation_rows(spark, spec, kafka, settings.max_offsets_per_trigger)
    query = rows.writeStream.foreachBatch(runner).option("checkpointLocation", settings.layout.checkpoint(1))
    query.trigger(availableNow=True).start().awaitTermination()
    return time.monotonic() - began


def measure(folder: Path, kafka: dict[str, str], events: int, joins: list[str]) -> list[Figure]:
    bootstrap = kafka["bootstrap.servers"]
    fill_topics(bootstrap, WARM_UP_EVENTS, "warm-users", "warm-accounts")
    tell(f"filling the topics with {events} events")
    fill_topics(bootstrap, events)
    spark = start_spark(Settings(root=str(folder / "none")))
    append(spark, Settings(root=str(folder / "warm-append")), kafka, "warm-users", "warm-accounts")
    floor = append(spark, Settings(root=str(folder / "append")), kafka, "users", "accounts")
    tell(f"append, no join: {floor:.1f} s")
    figures = []
    for name in joins:
        warm = Settings(root=str(folder / f"warm-{name}"))
        join(spark, warm, kafka, "warm-users", "warm-accounts", name)
        settings = Settings(root=str(folder / name))
        seconds = join(spark, settings, kafka, "users", "accounts", name)
        audit = audit_at_newest(lambda: spark, settings, 1)
        if not audit.is_clean:
            raise SystemExit(f"{name}: {audit}")
        tell(f"{name}: {seconds:.1f} s, {audit.rowsCompared} joined rows")
        rates = events / seconds, events / floor
        figures.append(Figure(f"bulk, {name}", *rates, "events/s", TARGETS[name], "at least", AGAINST))
    spark.stop()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="records of both topics together")
    parser.add_argument("--joins", nargs="*", choices=JOIN_TYPES, default=list(JOIN_TYPES))
    options = parser.parse_args()
    with running_broker() as (folder, kafka):
        figures = measure(folder, kafka, options.events, options.joins)
    keep("bulk", figures, {"events": options.events})
    return 0


if __name__ == "__main__":
    sys.exit(main())
