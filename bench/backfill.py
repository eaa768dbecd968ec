"""How fast history is read: the backfill job against the stream, over the same topics in one run.

Both build the same left join with the same session: the stream in its usual micro-batches, the backfill as one batch.
Each first reads a small pair of topics, so that neither pays for the start. Prints events a second of both and their
ratio, and writes bench/results/backfill.json. Both must be clean by the oracle.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import SparkSession

from bench.batch import fill_topics, start_spark
from switchyard.backfills import BackfillDesk, build_id, require_snapshot
from switchyard.generations import keep_spec, resolve_spec
from switchyard.kafka.topics import TopicReader
from switchyard.layout import PROJECT
from switchyard.local import loopback
from switchyard.local.broker import Broker
from switchyard.settings import Settings
from switchyard.stream.audit import audit_at_newest
from switchyard.stream.backfill import run_backfill
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.swaps import Event, Target
from switchyard.tables.writer import claim_attempt

WARM_UP_EVENTS = 20_000


def stream(spark: SparkSession, settings: Settings, kafka: dict[str, str], users: str, accounts: str) -> float:
    with TopicReader(kafka) as reader:
        spec = keep_spec(
            settings.layout, resolve_spec(reader, Target(users, accounts, "left"), "earliest", generation=1)
        )
    runner = BatchRunner(settings, spec, claim_attempt(settings.layout, 1))
    began = time.monotonic()
    rows = generation_rows(spark, spec, kafka, settings.max_offsets_per_trigger)
    query = rows.writeStream.foreachBatch(runner).option("checkpointLocation", settings.layout.checkpoint(1))
    query.trigger(availableNow=True).start().awaitTermination()
    return time.monotonic() - began


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


def compare(folder: str, bootstrap: str, events: int) -> dict[str, Any]:
    kafka = {"bootstrap.servers": bootstrap}
    fill_topics(bootstrap, WARM_UP_EVENTS, "warm-users", "warm-accounts")
    fill_topics(bootstrap, events)
    spark = start_spark(Settings(root=f"{folder}/none"))
    result: dict[str, Any] = {"events": events}
    for name, way in WAYS.items():
        way(spark, Settings(root=f"{folder}/warm-{name}"), kafka, "warm-users", "warm-accounts")
    for name, way in WAYS.items():
        settings = Settings(root=f"{folder}/{name}")
        seconds = way(spark, settings, kafka, "users", "accounts")
        audit = audit_at_newest(lambda: spark, settings, 1)
        result |= {
            f"{name}Seconds": round(seconds, 2),
            f"{name}EventsPerSecond": round(events / seconds),
            f"{name}JoinedRows": audit.rowsCompared,
            f"{name}IsClean": audit.is_clean,
        }
        print(f"  {name}: {seconds:.1f} s", flush=True)
    spark.stop()
    return result | {"ratio": round(result["streamSeconds"] / result["backfillSeconds"], 2)}


def run(events: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "broker", loopback.pick_free_port())
        broker.start()
        broker.wait_until_ready(60)
        try:
            return compare(folder, broker.bootstrap, events)
        finally:
            broker.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=400_000, help="records of both topics together")
    options = parser.parse_args()
    result = run(options.events)
    target = PROJECT / "bench" / "results" / "backfill.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name:24} {value}")
    return 0 if result["streamIsClean"] and result["backfillIsClean"] else 1


if __name__ == "__main__":
    sys.exit(main())
