"""Start the Spark session of the streaming driver and of the batch jobs. Jars come with spark-submit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from switchyard.object_store import find_store, hadoop_conf, is_on_object_store
from switchyard.settings import Settings
from switchyard.stream.decode import DECODE_CONF

LOGGING = Path(__file__).with_name("log4j2.properties")
MAX_RESULT_SIZE = "spark.driver.maxResultSize"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
# Options and settings whose values Spark must not show, in a plan, a log or an event.
SECRET_OPTIONS = "(?i)secret|password|token|access[._]?key|jaas|keystore|ssl[.]key"
METRICS_PATH = "/metrics/prometheus"
_SINK = "spark.metrics.conf.*.sink.prometheusServlet"
_TOKEN_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


def session_conf(settings: Settings) -> dict[str, str]:
    return {
        **DECODE_CONF,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # It plans again after each shuffle, which costs more than it saves on batches of a second.
        "spark.sql.adaptive.enabled": "false",
        # Else each Column asks the JVM several times, and Python for IPython, only to say in errors where it was made.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Else the shuffle of a stream's events is not the same for its two readers, see `query`.
        "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
        # A batch is kept for seconds: to look for the best encoding costs more than the space.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        # What does not fit the memory goes to disk in pieces of a megabyte or two. Java's serializer holds on to each
        # that it has written until it is reset, after 100 of them by default: more than the heap has room for.
        "spark.serializer.objectStreamReset": "1",
        # Rows of several kinds go to a file of each kind at once, without a sort.
        "spark.sql.maxConcurrentOutputFileWriters": "4",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        f"{_ROCKSDB}.changelogCheckpointing.enabled": "true",
        # Of each partition of the state. With one bound for all, the filters of large files push each other out of the
        # cache and are read again for nearly every lookup; so they are beside it, a few bytes for each row.
        f"{_ROCKSDB}.blockCacheSizeMB": "32",
        f"{_ROCKSDB}.writeBufferSizeMB": "16",
        # Else each row that is put is looked up first, only to be counted.
        f"{_ROCKSDB}.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.join.stateFormatVersion": "3",
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        MAX_RESULT_SIZE: "96m",
        "spark.redaction.regex": SECRET_OPTIONS,
        "spark.sql.redaction.options.regex": f"{SECRET_OPTIONS}|url",
        "spark.ui.showConsoleProgress": "false",
        **ui_conf(settings.spark_ui_port),
        **(hadoop_conf(find_store()) if is_on_object_store(settings.root) else {}),
    }


def ui_conf(port: int | None) -> dict[str, str]:
    """Return the settings of Spark's UI. It also serves the metrics; jobs cannot be ended from it."""
    if port is None:
        return {"spark.ui.enabled": "false"}
    return {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.ui.killEnabled": "false",
        "spark.ui.prometheus.enabled": "true",
        f"{_SINK}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{_SINK}.path": METRICS_PATH,
        "spark.metrics.conf.driver.source.jvm.class": "org.apache.spark.metrics.source.JvmSource",
        # Else the id of the application, new with each driver, is part of every name.
        "spark.metrics.namespace": "switchyard",
        "spark.sql.streaming.metricsEnabled": "true",
    }


def start_session(settings: Settings, name: str, token_url: str = "") -> SparkSession:
    """Start the session, or return the running one of a spare driver.

    `token_url` is the only address that a Kafka client of this session may fetch a token from.
    """
    # Of executors on a cluster: their log is configured like ours only if they have this file at the same path.
    java_options = f"-D{_TOKEN_URLS}={token_url} -Dlog4j2.configurationFile={LOGGING.as_uri()}"
    conf = session_conf(settings) | {"spark.executor.defaultJavaOptions": java_options}
    session = SparkSession.builder.appName(name).config(map=dict(conf)).getOrCreate()
    _configure_logging(session.sparkContext._jvm)
    allow_token_url(session, token_url)
    return session


def _configure_logging(jvm: Any) -> None:
    """Keep values out of the JVM's log: an exception of Spark may quote a record, and is logged before we see it."""
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.reconfigure(jvm.java.net.URI(LOGGING.as_uri()))
    # Batches that take longer than the trigger interval are normal here, and `progress` shows them.
    noisy = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"
    for name in (noisy, noisy.replace(".runtime", "")):
        log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def allow_token_url(session: SparkSession, url: str) -> None:
    """Set the allowed address in the JVM: unset, Kafka's client allows every address; empty, it allows none."""
    session.sparkContext._jvm.java.lang.System.setProperty(_TOKEN_URLS, url)  # type: ignore[union-attr]
