"""The tables in the docstrings of the four joins hold, and another engine agrees on random events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from switchyard.joins import JOINED_COLUMNS, JOINS
from tests import model
from tests.events import draw_events
from tests.model import Event
from tests.stream.tables import Table, parse_tables

USERS = "userId string, name string, email string, age long, ts timestamp, partition int, offset long"
ACCOUNTS = "userId string, accountType string, balance double, ts timestamp, partition int, offset long"


def frame(spark: SparkSession, rows: list[dict[str, Any]], schema: str) -> DataFrame:
    names = [part.split()[0] for part in schema.split(", ")]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], schema)


def typed(table: Table) -> list[dict[str, Any]]:
    return [
        row
        | {
            "ts": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=int(row["ts"] or 0)),
            "offset": int(row["offset"] or 0),
            "partition": 0,
        }
        for row in table
    ]


@pytest.mark.parametrize("join_type", JOINS)
def test_docstring_tables_hold(spark: SparkSession, join_type: str) -> None:
    tables = parse_tables(JOINS[join_type].__doc__ or "")
    joined = JOINS[join_type](
        frame(spark, typed(tables["users"]), USERS), frame(spark, typed(tables["accounts"]), ACCOUNTS), None
    )
    names = list(tables["joined"][0])
    found = [{name: None if row[name] is None else str(row[name]) for name in names} for row in joined.collect()]
    assert model.sort_rows(found) == model.sort_rows(tables["joined"])


@pytest.mark.parametrize("people", [12, 2], ids=["some people", "few people with many events"])
@pytest.mark.parametrize("within_seconds", [None, 20])
@pytest.mark.parametrize("join_type", JOINS)
def test_agrees_with_the_plain_model_on_random_events(
    spark: SparkSession, join_type: str, people: int, within_seconds: int | None
) -> None:
    offsets: dict[tuple[str, int], int] = {}
    events = []
    for side, partition, ts_ms, fields in draw_events(seed=3, count=120, people=people):
        offset = offsets.setdefault((side, partition), 0)
        offsets[side, partition] += 1
        events.append(Event(side, fields["userId"], ts_ms // 1000, partition, offset))
    sides = {side: [event for event in events if event.side == side] for side in ("user", "account")}
    frames = [
        frame(
            spark,
            [
                {"userId": e.user_id, "ts": e.ts, "partition": e.partition, "offset": e.offset, **e.fields}
                for e in sides[side]
            ],
            schema,
        )
        for side, schema in (("user", USERS), ("account", ACCOUNTS))
    ]
    within = None if within_seconds is None else timedelta(seconds=within_seconds)
    joined = JOINS[join_type](frames[0], frames[1], within).select(*JOINED_COLUMNS).collect()
    pairs = model.join(join_type, sides["user"], sides["account"], within_seconds)
    expected = [model.row_of(pair) for pair in pairs]
    in_utc = [
        {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.asDict().items()}
        for row in joined
    ]
    assert model.sort_rows(in_utc) == model.sort_rows(expected)


def test_events_further_apart_than_the_retention_do_not_meet(spark: SparkSession) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    users = frame(spark, [{"userId": "a", "ts": at, "partition": 0, "offset": 0}], USERS)
    accounts = frame(
        spark,
        [
            {"userId": "a", "ts": at + timedelta(seconds=60), "partition": 0, "offset": 0},
            {"userId": "a", "ts": at + timedelta(seconds=61), "partition": 0, "offset": 1},
        ],
        ACCOUNTS,
    )
    joined = JOINS["left"](users, accounts, timedelta(seconds=60)).collect()
    assert [row["accountOffset"] for row in joined] == [0]


@pytest.mark.parametrize("join_type", ["natural", "asof"])
@pytest.mark.parametrize("within", [None, timedelta(hours=1)])
def test_one_person_with_many_events_makes_no_pairs(
    spark: SparkSession, join_type: str, within: timedelta | None
) -> None:
    """900 million pairs would fill the disk before any of them is left out."""
    count = 30_000
    ts = (F.lit(datetime(2026, 1, 1, tzinfo=UTC)).cast("long") + F.col("id")).cast("timestamp")
    place = [ts.alias("ts"), F.lit(0).alias("partition"), F.col("id").alias("offset")]
    numbers = spark.range(0, count, 1, 2)
    users = numbers.selectExpr("'a' userId", "'Ann' name", "'a@x' email", "1L age", "id").select("*", *place)
    accounts = numbers.selectExpr("'a' userId", "'gold' accountType", "1d balance", "id").select("*", *place)
    rows = JOINS[join_type](users, accounts, within)
    found = rows.agg(
        F.count("*"), F.countDistinct("userOffset"), F.sum("accountOffset"), F.sum("userOffset")
    ).collect()[0]
    last, every = count - 1, count * (count - 1) // 2
    if join_type == "asof":
        assert tuple(found) == (count, count, every, every)
    else:
        reach = last if within is None else int(within.total_seconds())
        assert tuple(found) == (count, count, sum(min(number + reach, last) for number in range(count)), every)
