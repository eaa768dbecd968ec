"""How fast history is read: the backfill job against the stream, over the same topics in one run.

Both build the same left join with the same session: the stream in its usual micro-batches, the backfill as one batch.
Each first reads a small pair of topics, so that neither pays for the start. Both must be clean by the oracle.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import SparkSession

from bench.bulk import WARM_UP_EVENTS, join
from bench.measure import Figure, keep, tell
from bench.stage import fill_topics, running_broker, start_spark
from switchyard.backfills import BackfillDesk, build_id, require_snapshot
from switchyard.kafka.topics import TopicReader
from switchyard.settings import Settings
from switchyard.stream.audit import audit_at_newest
from switchyard.stream.backfill import run_backfill
from switchyard.swaps import Event


def stream(spark: SparkSession, settings: Settings, kafka: dict[str, str], users: str, accounts: str) -> float:
    return join(spark, settings, kafka, users, accounts, "left")


def backfill(spark: SparkSession, settings: Settings, kafka: dict[str, str], users: str, accounts: str) -> float:
    """With its data gate: from the order to the finished snapshot."""
    fields = {"users_topic": users, "accounts_topic": accounts, "join_type": "left"}
    began = time.monotonic()
    with TopicReader(kafka) as reader:
        BackfillDesk(settings, reader).order(fields, build_id("bench"), "bench")
    outcome = run_backfill(settings, require_snapshot(settings, 1), kafka, lambda: spark)
    seconds = time.monotonic() - began
    assert outcome.event is Event.PLANNED, outcome
    return seconds


Way = Callable[[SparkSession, Settings, dict[str, str], str, str], float]
WAYS: dict[str, Way] = {"stream": stream, "backfill": backfill}


def compare(folder: Path, kafka: dict[str, str], events: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of each way, and what both built."""
    fill_topics(kafka["bootstrap.servers"], WARM_UP_EVENTS, "warm-users", "warm-accounts")
    tell(f"filling the topics with {events} events")
    fill_topics(kafka["bootstrap.servers"], events)
    spark = start_spark(Settings(root=str(folder / "none")))
    for name, way in WAYS.items():
        way(spark, Settings(root=str(folder / f"warm-{name}")), kafka, "warm-users", "warm-accounts")
    seconds: dict[str, float] = {}
    facts: dict[str, Any] = {"events": events}
    for name, way in WAYS.items():
        settings = Settings(root=str(folder / name))
        seconds[name] = way(spark, settings, kafka, "users", "accounts")
        tell(f"{name}: {seconds[name]:.1f} s")
        audit = audit_at_newest(lambda: spark, settings, 1)
        if not audit.is_clean:
            raise SystemExit(f"{name}: {audit}")
        facts |= {f"joined rows by the {name}": audit.rowsCompared, f"seconds of the {name}": round(seconds[name], 1)}
    spark.stop()
    return seconds, facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="records of both topics together")
    options = parser.parse_args()
    with running_broker() as (folder, kafka):
        seconds, facts = compare(folder, kafka, options.events)
    rates = {name: options.events / taken for name, taken in seconds.items()}
    figure = Figure("backfill", rates["backfill"], rates["stream"], "events/s", 2.0, "at least", "the streaming path")
    keep("backfill", [figure], facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
