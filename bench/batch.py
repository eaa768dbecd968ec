"""How long a micro-batch takes: Switchyard's sink against Spark's own Delta commands, on the same records in one run.

Both run the same streaming query (left join) over the same topics. The baseline appends users, accounts and joined rows
with Spark's Delta writer and removes outdated null rows with a Delta DELETE. Prints both medians and their ratio, and
writes bench/results/batch.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.stage import fill_topics, running_broker, start_spark
from switchyard.joins import JOINED_COLUMNS
from switchyard.kafka.topics import TopicReader
from switchyard.layout import PROJECT
from switchyard.policies import Target
from switchyard.records import LEFT
from switchyard.settings import Settings
from switchyard.stream.audit import audit_generation
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.swap.generations import keep_spec, resolve_spec
from switchyard.tables.progress import newest_progress
from switchyard.tables.writer import claim_attempt

WARM_UP = 3


def time_batches(rows: DataFrame, checkpoint: str, handle: Callable[[DataFrame, int], None]) -> list[float]:
    """Return the seconds of each micro-batch inside foreachBatch, the first ones left out."""
    seconds: list[float] = []

    def timed(batch: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        handle(batch, batch_id)
        seconds.append(time.monotonic() - began)
        print(f"  batch {batch_id}: {seconds[-1]:.2f} s", flush=True)

    query = rows.writeStream.foreachBatch(timed).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
    return seconds[WARM_UP:]


class SparkDeltaSink:
    """The baseline: the same changes with Spark's Delta commands."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        users, pairs = (batch.where(F.col("kind") == kind).select(*JOINED_COLUMNS) for kind in ("user", "pair"))
        self._append("users", users)
        self._append("accounts", batch.where("kind = 'account'").select(*JOINED_COLUMNS))
        unmatched = users.join(pairs.select(*LEFT.place), LEFT.place, "left_anti").select(*JOINED_COLUMNS)
        self._append("joined", pairs.union(unmatched))
        old = pairs.join(users.select(*LEFT.place), LEFT.place, "left_anti").select(*LEFT.place).distinct()
        table = DeltaTable.forPath(batch.sparkSession, f"{self.folder}/joined")
        matches = "t.accountOffset is null and t.userPartition = s.userPartition and t.userOffset = s.userOffset"
        table.alias("t").merge(old.alias("s"), matches).whenMatchedDelete().execute()
        batch.unpersist()

    def _append(self, name: str, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(f"{self.folder}/{name}")


def compare(folder: Path, kafka: dict[str, str], records: int, batch_records: int) -> dict[str, Any]:
    settings = Settings(root=f"{folder}/root", max_offsets_per_trigger=batch_records // 2)
    fill_topics(kafka["bootstrap.servers"], records)
    with TopicReader(kafka) as reader:
        spec = resolve_spec(reader, Target("users", "accounts", "left"), "earliest", generation=1)
    keep_spec(settings.layout, spec)
    spark = start_spark(settings)
    rows = generation_rows(spark, spec, kafka, settings.max_offsets_per_trigger)
    print("Spark's Delta commands")
    baseline = time_batches(rows, f"{folder}/baseline-checkpoint", SparkDeltaSink(f"{folder}/baseline"))
    print("Switchyard")
    runner = BatchRunner(settings, spec, claim_attempt(settings.layout, 1))
    ours = time_batches(rows, settings.layout.checkpoint(1), runner)
    progress = newest_progress(settings.layout, 1)
    assert progress is not None
    audit = audit_generation(spark, settings.layout, spec, progress)
    spark.stop()
    return {
        "records": records,
        "recordsInABatch": batch_records,
        "joinedRows": audit.rowsCompared,
        "missing": audit.missing,
        "extra": audit.extra,
        "baselineMedianSeconds": round(statistics.median(baseline), 3),
        "switchyardMedianSeconds": round(statistics.median(ours), 3),
        "ratio": round(statistics.median(ours) / statistics.median(baseline), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=80_000, help="records of both topics together")
    parser.add_argument("--batch-records", type=int, default=5_000, help="records of one micro-batch")
    options = parser.parse_args()
    with running_broker() as (folder, kafka):
        result = compare(folder, kafka, options.records, options.batch_records)
    target = PROJECT / "bench" / "results" / "batch.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name:24} {value}")
    return 0 if result["missing"] == result["extra"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
