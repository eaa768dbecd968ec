"""The data gate: rows compared by the executors as multisets, samples of long histories, hot keys, damage found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from switchyard.layout import JOIN_TYPES, Layout
from switchyard.local.broker import Broker
from switchyard.settings import Settings
from switchyard.stream.audit import compare_rows
from switchyard.stream.fingerprints import sum_up
from switchyard.stream.gate import GateVerdict, examine
from switchyard.stream.gate_topics import read_again
from switchyard.tables import store
from switchyard.tables.forgotten import read_marks
from switchyard.tables.joined_changes import ROW_SCHEMA
from switchyard.tables.progress import newest_progress, report_again
from tests.events import FIRST_MS, draw_events
from tests.stream.running import Stream
from tests.topics import Topics

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS, LIMIT = 400, 100


def row(user_id: str, offset: int = 0, **changes: Any) -> dict[str, Any]:
    user = {"userId": user_id, "name": "Ann", "email": "ann@example.org", "age": 30}
    account = {"accountType": "gold", "balance": 1.5, "accountTs": NOW, "accountPartition": 0, "accountOffset": offset}
    return user | account | {"userTs": NOW, "userPartition": 1, "userOffset": offset} | changes


def without_account(user_id: str, offset: int = 0) -> dict[str, Any]:
    names = ("accountType", "balance", "accountTs", "accountPartition", "accountOffset")
    return row(user_id, offset) | dict.fromkeys(names)


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), ROW_SCHEMA)


A, B, UNMATCHED = row("a"), row("b", 1), without_account("c", 2)


@pytest.mark.parametrize(
    ("expected", "actual", "found"),
    [
        ([], [], (0, 0, 0)),
        ([A, B, UNMATCHED], [UNMATCHED, B, A], (3, 0, 0)),
        ([A, B], [A], (1, 1, 0)),
        ([A], [A, B], (2, 0, 1)),
        ([A, B], [], (0, 2, 0)),
        ([A], [A, A, A], (3, 0, 2)),
        ([A, A], [A], (1, 1, 0)),
        ([A, A], [A, A], (2, 0, 0)),
        ([UNMATCHED], [row("c", 2)], (1, 1, 1)),
        ([row("a", balance=None)], [row("a", balance=0.0)], (1, 1, 1)),
        ([row("a", name="")], [row("a", name=None)], (1, 1, 1)),
        ([row("a", balance=None)], [row("a", balance=None)], (1, 0, 0)),
        ([row("a", age=30)], [row("a", age=31)], (1, 1, 1)),
    ],
    ids=[
        "empty",
        "another order",
        "missing",
        "extra",
        "all missing",
        "double",
        "once too few",
        "as often",
        "null row left over",
        "null for zero",
        "null for empty",
        "null and null",
        "other value",
    ],
)
def test_rows_are_compared_as_multisets(
    spark: SparkSession, expected: list[Any], actual: list[Any], found: tuple[int, int, int]
) -> None:
    frames = [spark.createDataFrame(table(*rows)) for rows in (expected, actual)]
    assert compare_rows(*frames)[:3] == found
    assert sum_up(*frames) == (found[0], found[1:] == (0, 0))
    assert (found[1:] == (0, 0)) is (sorted(map(str, expected)) == sorted(map(str, actual)))


@pytest.fixture(scope="module")
def build(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stream]:
    """The generation of each join type, made once. Few people with many events each: more joined rows than records."""
    topics = Topics.fresh(broker.bootstrap)
    topics.send(draw_events(seed=5, count=RECORDS, people=10))

    @cache
    def run(join_type: str) -> Stream:
        layout = Layout(str(tmp_path_factory.mktemp(join_type) / "root"))
        stream = Stream.prepare(spark, layout, topics, join_type)
        stream.run_attempt()
        return stream

    return run


@pytest.fixture
def stream(build: Callable[[str], Stream], layout: Layout, request: pytest.FixtureRequest) -> Stream:
    """A copy, which a test may damage."""
    built = build(getattr(request, "param", "left"))
    shutil.copytree(built.settings.root, layout.root)
    return replace(built, settings=Settings(root=layout.root))


def look(stream: Stream, limit: int, is_resumed: bool = False) -> GateVerdict:
    kafka = None if is_resumed else stream.topics.kafka
    return examine(stream.spark, stream.settings.layout, stream.spec, kafka, limit)


@pytest.mark.parametrize("stream", JOIN_TYPES, indirect=True)
def test_a_right_generation_passes_whole_and_in_part(stream: Stream) -> None:
    rows = store.read_arrow(stream.settings.layout, "joined").num_rows
    assert look(stream, 10**6) == GateVerdict(rows, 0, 0, RECORDS)
    assert look(stream, 10**6, is_resumed=True) == GateVerdict(rows, 0, 0, RECORDS)
    for is_resumed in (False, True):
        sampled = look(stream, LIMIT, is_resumed)
        assert sampled.is_clean
        assert sampled.records == RECORDS
        assert sampled.events
        assert 0 < sampled.compared <= LIMIT
    many = look(stream, RECORDS)
    assert many.is_clean
    assert (many.events is None) is (rows <= RECORDS), "few records with many rows are a sample too"


def test_what_was_read_again_before_is_used_if_it_ends_at_the_same_place(stream: Stream) -> None:
    layout, spec = stream.settings.layout, stream.spec
    rows = store.read_arrow(layout, "joined").num_rows
    for limit in (10**6, LIMIT):
        for end in (spec.readyOffsets, spec.startOffsets):
            known = read_again(stream.spark, spec, stream.topics.kafka, end, read_marks(layout).up_to(0), limit)
            found = examine(stream.spark, layout, spec, stream.topics.kafka, limit, known)
            assert found.is_clean
            assert found.compared == rows if limit > rows else 0 < found.compared <= limit
    assert not stream.spark.sparkContext._jsc.getPersistentRDDs(), "nothing is kept by the executors"


def test_turned_off_nothing_is_compared(stream: Stream) -> None:
    assert look(stream, 0) == GateVerdict(0, 0, 0, RECORDS, is_off=True)


def lose(rows: pa.Table) -> pa.Table:
    return rows.slice(0, 0)


def double(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows])


def change(rows: pa.Table) -> pa.Table:
    name = "name" if "name" in rows.column_names else "accountType"
    changed = pc.binary_join_element_wise(rows[name].fill_null(""), "!", "")
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), changed)


def damage(stream: Stream, table: str, how: Callable[[pa.Table], pa.Table]) -> None:
    """Changes a table behind the stream's back; the newest progress row names what it has become."""
    layout = stream.settings.layout
    rows = how(store.read_arrow(layout, table))
    store.write_deltalake(store.open_table(layout, table), rows, mode="overwrite")
    last = newest_progress(layout, 1)
    assert last
    report_again(layout, last, datetime.now(UTC))


@pytest.mark.parametrize("how", [lose, double, change])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_damage_to_joined_shuts_the_gate_also_for_a_sample(
    stream: Stream, how: Callable[[pa.Table], pa.Table], is_resumed: bool
) -> None:
    damage(stream, "joined", how)
    for limit in (LIMIT, 10**6):
        verdict = look(stream, limit, is_resumed)
        assert not verdict.is_clean, verdict
        assert (verdict.missing > 0) is (how is not double)
        assert (verdict.extra > 0) is (how is not lose)


@pytest.mark.parametrize("name", ["users", "accounts"])
@pytest.mark.parametrize("limit", [LIMIT, 10**6])
def test_records_that_are_stored_wrongly_shut_the_gate(stream: Stream, name: str, limit: int) -> None:
    damage(stream, name, change)
    verdict = look(stream, limit)
    assert verdict.wrong_records > 0
    assert not verdict.is_clean


def test_a_resumed_generation_that_has_lost_everything_is_not_taken_for_one_without_rows(stream: Stream) -> None:
    for name in ("users", "accounts", "joined"):
        damage(stream, name, lose)
    for limit in (LIMIT, 10**6):
        verdict = look(stream, limit, is_resumed=True)
        assert (verdict.compared, verdict.miscounted, verdict.is_clean) == (0, RECORDS, False)
        assert verdict.describe().endswith(f"{RECORDS} records are not stored exactly once")


@pytest.mark.parametrize("stream", ["left", "asof"], indirect=True)
def test_rows_of_an_event_that_is_not_stored_shut_the_gate_of_a_sample(stream: Stream) -> None:
    """The event has become a reject, so the number of stored records is right, and its rows were left behind."""
    layout, name = stream.settings.layout, "accounts" if stream.spec.joinType == "asof" else "users"
    is_first = pc.field("offset") == 0
    [gone, *_] = store.read_arrow(layout, name, where=is_first).to_pylist()
    place = {key: gone[key] for key in ("generation", "topic", "partition", "offset", "ts")}
    store.append_rows(layout, "rejects", [place | {"value": None, "reason": "it was never valid"}])
    damage(stream, name, lambda rows: rows.filter(~(is_first & (pc.field("partition") == gone["partition"]))))
    verdict = look(stream, LIMIT, is_resumed=True)
    assert (verdict.missing, verdict.miscounted) == (0, 0)
    assert verdict.extra > 0


@pytest.mark.parametrize("join_type", JOIN_TYPES)
def test_a_hot_key_is_compared_by_some_of_its_events(
    spark: SparkSession, layout: Layout, topics: Topics, join_type: str
) -> None:
    """60 x 60 events of one person are 3,600 pairs, and every event alone makes more rows than the limit."""
    stream = Stream.prepare(spark, layout, topics, join_type)
    hot = [(side, n % 2, FIRST_MS + n, {"userId": "hot"}) for n in range(60) for side in ("user", "account")]
    topics.send(hot)
    stream.run_attempt()
    verdict = look(stream, 40)
    assert verdict.is_clean
    assert verdict.events == 1
    assert verdict.compared == (60 if join_type in ("left", "inner") else 1)
    wide = look(stream, 200)
    assert (wide.is_clean, wide.events) == (True, 3 if join_type in ("left", "inner") else None)
