"""The Spark session of the streaming driver and of the audit. Jars come with spark-submit, never from here."""

from __future__ import annotations

import logging
from pathlib import Path

from pyspark.sql import SparkSession

from switchyard.settings import Settings
from switchyard.stream.decode import DECODE_CONF

LOGGING = Path(__file__).with_name("log4j2.properties")
MAX_RESULT_SIZE = "spark.driver.maxResultSize"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
# Options and settings whose values Spark must not show, in a plan, a log or an event.
SECRET_OPTIONS = "(?i)secret|password|token|access[.]?key|jaas|keystore|ssl[.]key"
_TOKEN_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


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
        MAX_RESULT_SIZE: "256m",
        "spark.redaction.regex": SECRET_OPTIONS,
        "spark.sql.redaction.options.regex": f"{SECRET_OPTIONS}|url",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def start_session(settings: Settings, name: str, token_url: str = "") -> SparkSession:
    """`token_url` is the only address that a Kafka client of this session may fetch a token from."""
    conf = session_conf(settings) | {"spark.executor.defaultJavaOptions": f"-D{_TOKEN_URLS}={token_url}"}
    session = SparkSession.builder.appName(name).config(map=dict(conf)).getOrCreate()
    _keep_values_out(session)
    session.sparkContext.setLogLevel("WARN")
    allow_token_url(session, token_url)
    _quieten(session)
    return session


def _keep_values_out(session: SparkSession) -> None:
    """An exception of Spark may quote a record, and the JVM writes it into the log before we see it."""
    jvm = session.sparkContext._jvm
    place = jvm.java.net.URI(LOGGING.as_uri())  # type: ignore[union-attr]
    jvm.org.apache.logging.log4j.core.config.Configurator.reconfigure(place)  # type: ignore[union-attr]


def allow_token_url(session: SparkSession, url: str) -> None:
    """Kafka's client allows every address as long as nothing is said, and none when this is empty."""
    session.sparkContext._jvm.java.lang.System.setProperty(_TOKEN_URLS, url)  # type: ignore[union-attr]


def _quieten(session: SparkSession) -> None:
    """Batches that take longer than the trigger interval are normal here; progress shows them."""
    jvm = session.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    noisy = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"
    for name in (noisy, noisy.replace(".runtime", "")):
        log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    logging.getLogger("py4j").setLevel(logging.WARNING)
