"""The real stream on real topics: right by the oracle and by another engine, in small and in big batches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from deltalake import QueryBuilder
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from switchyard.layout import BIG_TABLES, JOIN_TYPES, Layout
from switchyard.stream import bulk
from switchyard.stream.query import generation_rows
from switchyard.stream.session import MAX_RESULT_SIZE
from switchyard.stream.small_batch import MOST_TASK_ROWS
from switchyard.tables import store
from switchyard.tables.schemas import SCHEMAS
from tests.events import FIRST_MS, draw_events
from tests.second_oracle import join_with_duckdb, read_joined
from tests.stream.running import Stream
from tests.topics import Topics

EVENTS = 110


@pytest.mark.parametrize(
    ("small_batch_records", "most_revised_rows", "rounds"),
    [(100_000, 0, 3), (0, 50_000, 3), (0, 0, 2)],
    ids=["small", "bulk", "revised by executors"],
)
@pytest.mark.parametrize("join_type", JOIN_TYPES)
def test_restarted_stream_equals_the_join(
    spark: SparkSession,
    layout: Layout,
    topics: Topics,
    join_type: str,
    small_batch_records: int,
    most_revised_rows: int,
    rounds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "MOST_REVISED_ROWS", most_revised_rows)
    stream = Stream.prepare(
        spark,
        layout,
        topics,
        join_type,
        small_batch_records=small_batch_records,
        max_offsets_per_trigger=60,
    )
    events = draw_events(seed=7, count=EVENTS * rounds)
    for number in range(rounds):
        topics.send(events[number * EVENTS : (number + 1) * EVENTS])
        stream.run_attempt()
    audit = stream.audit()
    assert (audit.missing, audit.extra, audit.unaccounted, audit.holes) == (0, 0, 0, 0), audit.samples
    assert audit.rowsCompared > 100
    assert read_joined(layout) == join_with_duckdb(layout, join_type)


@pytest.mark.parametrize("retention", [None, timedelta(days=1)], ids=["for ever", "for a day"])
def test_each_topic_is_read_once(
    spark: SparkSession, layout: Layout, topics: Topics, retention: timedelta | None
) -> None:
    """Spark counts what its sources give; a second read of a topic would count twice."""
    events = draw_events(seed=8, count=40)
    topics.send(events)
    stream = Stream.prepare(spark, layout, topics, "inner", state_retention=retention)
    rows = generation_rows(spark, stream.spec, topics.kafka, max_offsets=100)
    seen: list[int] = []
    query = (
        rows.writeStream.foreachBatch(lambda batch, _: seen.append(batch.where("kind <> 'pair'").count()))
        .option("checkpointLocation", layout.checkpoint(1))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(seen) == len(events)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == len(events)


@pytest.fixture
def tiny_results(spark: SparkSession) -> Iterator[None]:
    """Spark lets the driver collect 1 MiB only; it asks its configuration again for each job."""
    conf = spark.sparkContext._jsc.sc().conf()
    before = conf.get(MAX_RESULT_SIZE)
    conf.set(MAX_RESULT_SIZE, "1m")
    yield
    conf.set(MAX_RESULT_SIZE, before)


@pytest.mark.usefixtures("tiny_results")
def test_small_batch_with_too_many_pairs_for_the_driver(
    spark: SparkSession, layout: Layout, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """A hot key: 120 users and 120 accounts of one userId in one batch, after one that fits."""
    stream = Stream.prepare(spark, layout, topics, "left")
    topics.send([("user", 0, FIRST_MS, {"userId": "hot", "name": "first"})])
    stream.run_attempt()
    users = [("user", n % 2, FIRST_MS + n, {"userId": "hot", "name": "x" * 50}) for n in range(120)]
    accounts = [("account", n % 2, FIRST_MS + n, {"userId": "hot", "accountType": "y" * 50}) for n in range(120)]
    topics.send([*users, *accounts])
    stream.run_attempt()
    assert "too many pairs for the driver" in caplog.text
    rows = store.read_arrow(layout, "joined", columns=["userOffset", "accountOffset"])
    assert rows.num_rows == 121 * 120
    assert rows["accountOffset"].null_count == 0
    assert stream.audit().is_clean


def hot_events(count: int) -> list[tuple[str, int, int, dict[str, str]]]:
    return [(side, n % 2, FIRST_MS + n, {"userId": "hot"}) for n in range(count) for side in ("user", "account")]


@pytest.mark.parametrize("join_type", ["left", "natural"])
def test_a_hot_key_in_a_small_batch_is_written_by_executors(
    spark: SparkSession, layout: Layout, topics: Topics, join_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A task stops sending rows before it has collected all pairs: 260 x 260 of them."""
    stream = Stream.prepare(spark, layout, topics, join_type)
    topics.send(hot_events(260))
    stream.run_attempt()
    assert MOST_TASK_ROWS < 260 * 260
    assert "too many pairs for the driver" in caplog.text
    rows = store.read_arrow(layout, "joined", columns=["accountOffset"]).num_rows
    assert rows == (260 * 260 if join_type == "left" else 260)
    assert stream.audit().is_clean


def test_a_record_that_is_too_long_for_the_driver_is_written_by_executors(
    spark: SparkSession, layout: Layout, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream.prepare(spark, layout, topics, "left")
    short, long = b'{"userId": "a"}', b'{"userId": "a", "name": "' + b"x" * 900_000 + b'"}'
    topics.send_raw(topics.users, [short] * 20 + [long], ts_ms=FIRST_MS)
    stream.run_attempt()
    assert "too many pairs for the driver" in caplog.text
    assert store.read_arrow(layout, "joined", columns=["userOffset"]).num_rows == 21
    assert stream.audit().is_clean


def test_a_join_that_explodes_says_so_and_writes_nothing(spark: SparkSession, layout: Layout, topics: Topics) -> None:
    stream = Stream.prepare(spark, layout, topics, "inner", most_batch_rows=10_000, small_batch_records=0)
    topics.send(hot_events(150))
    with pytest.raises(StreamingQueryException, match="few userIds have very many events"):
        stream.run_attempt()
    assert store.read_arrow(layout, "users").num_rows == 0


def test_state_retention_bounds_how_far_apart_events_may_be(
    spark: SparkSession, layout: Layout, topics: Topics
) -> None:
    stream = Stream.prepare(spark, layout, topics, "left", state_retention=timedelta(seconds=60))
    for number, (side, second) in enumerate([("user", 0), ("account", 30), ("account", 61), ("user", 200)]):
        fields = {"userId": "a", "name": str(number)} if side == "user" else {"userId": "a", "balance": number}
        topics.send([(side, 0, FIRST_MS + second * 1000, fields)])
        stream.run_attempt()
    audit = stream.audit()
    assert (audit.missing, audit.extra, audit.unaccounted) == (0, 0, 0)
    rows = store.read_rows(layout, "joined")
    assert sorted((row["userOffset"], row["accountOffset"]) for row in rows if row["accountOffset"] is not None) == [
        (0, 0)
    ]
    assert [row["userOffset"] for row in rows if row["accountOffset"] is None] == [1]


def test_tables_open_in_other_delta_readers(spark: SparkSession, layout: Layout, topics: Topics) -> None:
    topics.send(draw_events(seed=8, count=60))
    Stream.prepare(spark, layout, topics, "left").run_attempt()
    for name in BIG_TABLES:
        ours = store.read_arrow(layout, name).num_rows
        by_spark = spark.read.format("delta").load(layout.table(name))
        assert (by_spark.columns, by_spark.count()) == (SCHEMAS[name].names, ours)
        by_datafusion = QueryBuilder().register("t", store.open_table(layout, name))
        assert by_datafusion.execute("select count(*) as n from t").read_all()["n"][0].as_py() == ours
