"""What people are told of real errors of Spark, Kafka, Delta and Python: one sentence, whatever the error says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from switchyard.layout import Layout
from switchyard.stream.failures import DETAILS
from switchyard.stream.session import MAX_RESULT_SIZE
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import scan_file
from switchyard.wording import describe_stack
from tests.events import draw_events
from tests.failures import SECRET, check, explain
from tests.stream.running import Stream
from tests.topics import Topics


@pytest.fixture
def secrets(spark: SparkSession) -> DataFrame:
    return spark.range(2).select(F.lit(SECRET).alias("email"), (F.col("id") * 0).alias("zero"))


@contextmanager
def most_result_bytes(spark: SparkSession, size: str) -> Iterator[None]:
    """For the jobs that begin meanwhile, in the session of all tests."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    before = conf.get(MAX_RESULT_SIZE)
    conf.set(MAX_RESULT_SIZE, size)
    try:
        yield
    finally:
        conf.set(MAX_RESULT_SIZE, before)


def test_more_rows_than_the_driver_may_collect(spark: SparkSession) -> None:
    rows = spark.range(0, 8, 1, 2).select(F.repeat(F.lit("x"), 1_000_000))
    with most_result_bytes(spark, "1m"):
        for collect in (rows.toArrow, spark.range(0, 400_000, 1, 2).select(F.rand()).collect):
            check(explain(collect), "the driver was to collect more rows than it may", "swap again with a later start")


def test_an_expression_that_fails_in_a_task(secrets: DataFrame, tmp_path: Path) -> None:
    numbers = secrets.select(F.col("email").cast("int"))
    check(explain(numbers.collect), "NumberFormatException: The value '...'", DETAILS)
    share = secrets.select((F.lit(1) / F.col("zero")).alias("share"))
    for act in (share.collect, share.toArrow, lambda: share.write.parquet(str(tmp_path / "shares"))):
        check(explain(act), f"ArithmeticException: Division by zero; {DETAILS}")


def test_the_stack_of_java_is_in_the_log_without_values(secrets: DataFrame, spark: SparkSession) -> None:
    numbers = secrets.select(F.col("email").cast("int"))
    with pytest.raises(Exception, match="CAST_INVALID_INPUT") as cast:
        numbers.collect()
    with most_result_bytes(spark, "1m"), pytest.raises(Exception, match="maxResultSize") as collected:
        spark.range(0, 8, 1, 2).select(F.repeat(F.lit("x"), 1_000_000)).toArrow()
    for error, frame in ((cast.value, "org.apache.spark.sql"), (collected.value, "DAGScheduler.abortStage")):
        stack = describe_stack(error)
        assert re.search(rf"^\tat .*{frame}", stack, re.MULTILINE), stack
        assert "test_failures.py" in stack
        assert "jane" not in stack


def test_a_python_function_that_fails_in_a_task(secrets: DataFrame) -> None:
    numbers = secrets.select(F.udf(lambda text: int(text), "int")("email"))
    check(explain(numbers.collect), f"ValueError: invalid literal for int() with base 10: '...'; {DETAILS}")


def test_a_batch_of_a_stream_that_fails(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one.txt").write_text(SECRET)

    def run() -> None:
        lines = spark.readStream.text(str(tmp_path / "lines")).writeStream
        lines = lines.foreachBatch(lambda rows, _: rows.select(F.col("value").cast("int")).collect())
        query = lines.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    check(explain(run), "NumberFormatException: The value '...'", DETAILS)


def test_a_plan_that_cannot_be_made(secrets: DataFrame) -> None:
    check(explain(lambda: secrets.select("nobody")), "name `nobody` cannot be resolved", DETAILS)


def test_memory_that_is_not_there(spark: SparkSession) -> None:
    too_long: Any = spark._jvm.java.util.ArrayList
    for ask in (lambda: too_long(2**31 - 1), lambda: pa.allocate_buffer(2**62)):
        check(explain(ask), "the driver had not enough memory; raise SWITCHYARD_DRIVER_MEMORY")


def test_records_that_kafka_has_deleted(spark: SparkSession, layout: Layout, topics: Topics) -> None:
    stream = Stream.prepare(spark, layout, topics, "left")
    topics.send(draw_events(seed=9, count=40, people=5))
    deleted = [TopicPartition(topics.users, partition, 5) for partition in (0, 1)]
    admin = AdminClient(topics.kafka)
    for done in admin.delete_records(deleted).values():
        done.result(30)
    check(explain(stream.run_attempt), "batch 0 failed: Kafka no longer holds records", "roll back, or swap to another")


def test_a_topic_that_is_not_there_and_a_broker_that_does_not_answer(spark: SparkSession, topics: Topics) -> None:
    def read(bootstrap: str) -> list[Any]:
        options = {"bootstrap.servers": bootstrap, "default.api.timeout.ms": "1500", "request.timeout.ms": "1000"}
        kafka = {f"kafka.{name}": value for name, value in options.items()}
        kafka["fetchOffset.numRetries"] = "1"
        return spark.read.format("kafka").options(**kafka, subscribe="never-created").load().collect()

    check(explain(lambda: read(topics.bootstrap)), "a topic that it reads does not exist any more; create it")
    check(explain(lambda: read("127.0.0.1:1")), "the broker did not answer for too long; look whether it runs")


@pytest.fixture
def table(tmp_path: Path) -> str:
    uri = str(tmp_path / "table")
    write_deltalake(uri, pa.table({"number": [1, 2, 3]}))
    return uri


def test_a_file_or_a_version_of_a_table_that_is_gone(spark: SparkSession, table: str) -> None:
    [path] = DeltaTable(table).file_uris()
    Path(path.removeprefix("file://")).unlink()
    folder, name = Folder.at(table), path.rpartition("/")[2]
    schema = pa.schema([("number", pa.int64())])
    reads: list[Callable[[], object]] = [
        lambda: spark.read.format("delta").load(table).collect(),
        lambda: spark.read.parquet(folder.spark_uri(name)).collect(),
        lambda: spark.read.format("delta").option("versionAsOf", 99).load(table),
        lambda: DeltaTable(table).to_pyarrow_table(),
        lambda: DeltaTable(table, version=99),
        lambda: list(scan_file(folder, name, schema)),
    ]
    for read in reads:
        check(explain(read), "a file or a version of a table that it needs is not there any more", "swap again")


def test_columns_that_a_table_does_not_have(secrets: DataFrame, table: str) -> None:
    writes: list[Callable[[], object]] = [
        lambda: write_deltalake(table, pa.table({"text": [SECRET]}), mode="append"),
        lambda: secrets.select(F.struct("email").alias("number")).write.format("delta").mode("append").save(table),
    ]
    for write in writes:
        check(explain(write), "a table has other columns than Switchyard writes; undo")
    numbers = pa.table({"number": [SECRET]})
    check(explain(lambda: write_deltalake(table, numbers, mode="append")), "Cannot cast string '...' to value of Int64")
