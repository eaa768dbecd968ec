"""How long a micro-batch takes: Switchyard's sink against Spark's own Delta commands, on the same records in one run.

Both run the same streaming query (left join) over the same topics. The baseline appends users, accounts and joined rows
with Spark's Delta writer and removes outdated null rows with a Delta DELETE. Prints both medians and their ratio, and
writes bench/results/batch.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from switchyard.generations import keep_spec, resolve_spec
from switchyard.joins import JOINED_COLUMNS, USER_KEY
from switchyard.kafka.demo import draw_account, draw_user
from switchyard.kafka.topics import TopicReader, ensure_topics
from switchyard.layout import PROJECT
from switchyard.local import loopback
from switchyard.local.broker import Broker
from switchyard.local.jars import delta_jars, spark_jars
from switchyard.local.java import find_java
from switchyard.settings import Settings
from switchyard.stream.audit import audit_generation
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.stream.session import session_conf
from switchyard.swaps import Target
from switchyard.tables.progress import newest_progress
from switchyard.tables.writer import claim_attempt

WARM_UP = 3


def start_spark(settings: Settings) -> SparkSession:
    os.environ.update(PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(find_java().path))
    conf = session_conf(settings) | {
        "spark.jars": ",".join(map(str, [*spark_jars(), *delta_jars()])),
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    spark = SparkSession.builder.master("local[2]").appName("bench batch").config(map=dict(conf)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fill_topics(bootstrap: str, records: int, users: str = "users", accounts: str = "accounts") -> None:
    """The same number of users and accounts, of people who have a few of each."""
    from confluent_kafka import Producer

    ensure_topics({"bootstrap.servers": bootstrap}, [users, accounts], 2)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    draw = random.Random(1)
    for _ in range(records // 2):
        for topic, make in ((users, draw_user), (accounts, draw_account)):
            fields = make(draw.randrange(records), draw)
            producer.produce(topic, json.dumps(fields).encode(), partition=draw.randrange(2))
        producer.poll(0)
    producer.flush()


def time_batches(rows: DataFrame, checkpoint: str, handle: Callable[[DataFrame, int], None]) -> list[float]:
    """Seconds of each micro-batch inside foreachBatch, the first ones left out."""
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
        lonely = users.join(pairs.select(*USER_KEY), USER_KEY, "left_anti").select(*JOINED_COLUMNS)
        self._append("joined", pairs.union(lonely))
        old = pairs.join(users.select(*USER_KEY), USER_KEY, "left_anti").select(*USER_KEY).distinct()
        table = DeltaTable.forPath(batch.sparkSession, f"{self.folder}/joined")
        matches = "t.accountOffset is null and t.userPartition = s.userPartition and t.userOffset = s.userOffset"
        table.alias("t").merge(old.alias("s"), matches).whenMatchedDelete().execute()
        batch.unpersist()

    def _append(self, name: str, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(f"{self.folder}/{name}")


def run(records: int, batch_records: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "broker", loopback.pick_free_port())
        broker.start()
        broker.wait_until_ready(60)
        try:
            return compare(folder, broker.bootstrap, records, batch_records)
        finally:
            broker.stop()


def compare(folder: str, bootstrap: str, records: int, batch_records: int) -> dict[str, Any]:
    kafka = {"bootstrap.servers": bootstrap}
    settings = Settings(root=f"{folder}/root", max_offsets_per_trigger=batch_records // 2)
    fill_topics(bootstrap, records)
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
    result = run(options.records, options.batch_records)
    target = PROJECT / "bench" / "results" / "batch.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name:24} {value}")
    return 0 if result["missing"] == result["extra"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
