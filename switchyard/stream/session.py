"""Spark sessions: of a generation's driver and of batch jobs. Jars come with spark-submit, never from here."""

from __future__ import annotations

from pyspark.sql import SparkSession

from switchyard.settings import Settings
from switchyard.stream.decode import DECODE_CONF

_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"


def session_conf(settings: Settings) -> dict[str, str]:
    """What the job relies on. Adaptive execution costs more than it gives on batches of a second."""
    return {
        **DECODE_CONF,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        f"{_ROCKSDB}.changelogCheckpointing.enabled": "true",
        f"{_ROCKSDB}.boundedMemoryUsage": "true",
        f"{_ROCKSDB}.maxMemoryUsageMB": "500",
        "spark.sql.streaming.join.stateFormatVersion": "3",
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def batch_conf(settings: Settings) -> dict[str, str]:
    """Batch jobs read the Delta tables through Spark; the streaming driver never does."""
    return session_conf(settings) | {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.adaptive.enabled": "true",
        # The default of 50 tasks to read a table's log costs many seconds for each table on two cores.
        "spark.databricks.delta.snapshotPartitions": str(settings.shuffle_partitions),
    }


def start_session(settings: Settings, name: str) -> SparkSession:
    return _start(name, session_conf(settings))


def start_batch_session(settings: Settings, name: str) -> SparkSession:
    return _start(name, batch_conf(settings))


def _start(name: str, conf: dict[str, str]) -> SparkSession:
    session = SparkSession.builder.appName(name).config(map=conf).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session
