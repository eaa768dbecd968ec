"""Big batches: how rows stand to what is there, and the files that they go to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from switchyard.errors import SwitchyardError
from switchyard.layout import Layout
from switchyard.records import BATCH, JOIN_RULES
from switchyard.stream.bulk import classify_rows, count_kinds, end_at
from switchyard.tables import store
from tests.events import draw_events
from tests.stream.running import Stream
from tests.stream.tables import parse_tables
from tests.topics import Topics

SCHEMA = ", ".join(f"{name} {kind}" for name, kind in BATCH.items())
NUMBERS = ("userOffset", "accountOffset")


def typed(row: dict[str, str | None]) -> tuple[Any, ...]:
    offsets = {name: None if row[name] is None else int(row[name] or 0) for name in NUMBERS}
    values: dict[str, Any] = {"kind": row["kind"], "userId": "a", **offsets}
    for side in ("user", "account"):
        if (offset := offsets[f"{side}Offset"]) is not None:
            moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=offset)
            values |= {f"{side}Partition": 0, f"{side}Ts": moment}
    return tuple(values.get(name) for name in BATCH)


@pytest.mark.parametrize("join_type", ["natural", "left"])
def test_docstring_table_of_matches_holds(spark: SparkSession, join_type: str) -> None:
    table = parse_tables(classify_rows.__doc__ or "")[""]
    rows = spark.createDataFrame([typed(row) for row in table], SCHEMA)
    found = classify_rows(rows, JOIN_RULES[join_type]).collect()
    assert {(row["userOffset"], row["accountOffset"], row["match"]) for row in found} == {
        (int(row["userOffset"] or 0), None if row["accountOffset"] is None else int(row["accountOffset"]), match)
        for row in table
        if (match := row[join_type])
    }


def test_rows_without_an_account_are_in_files_of_their_own(spark: SparkSession, layout: Layout, topics: Topics) -> None:
    """Else to drop one of them would be to write many pairs again."""
    stream = Stream.prepare(spark, layout, topics, "left", small_batch_records=0, max_offsets_per_trigger=60)
    topics.send(draw_events(seed=9, count=200, people=150))
    stream.run_attempt()
    files = pa.table(store.open_table(layout, "joined").get_add_actions(flatten=True)).to_pylist()
    shares = {file["null_count.accountOffset"] / file["num_records"] for file in files}
    assert shares == {0.0, 1.0}, files


def test_a_task_that_makes_rows_without_end_is_ended_at_the_bound(spark: SparkSession) -> None:
    """10^14 rows would take days to count: nothing but the bound ends these tasks."""
    endless = spark.range(10**14).selectExpr("if(id < 10, 'user', 'pair') AS kind")
    with pytest.raises(SwitchyardError, match="batch 7 makes more than 1000 rows"):
        count_kinds(end_at(endless, 1_000).groupBy("kind").count(), batch_id=7, most_rows=1_000)
    few = spark.range(1_000).selectExpr("if(id < 10, 'user', 'pair') AS kind")
    counted = end_at(few, 1_000).groupBy("kind").count()
    assert count_kinds(counted, batch_id=7, most_rows=1_000) == {"user": 10, "pair": 990}
    assert count_kinds(counted.where("kind = 'none'"), batch_id=7, most_rows=1_000) == {}
