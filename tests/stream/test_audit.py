"""The oracle must be able to fail: rows that are lost, doubled or changed, records that are not stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from switchyard.layout import Layout
from switchyard.records import PLACES
from switchyard.stream.audit import Audit, audit_generation
from switchyard.tables import store
from switchyard.tables.progress import newest_progress
from tests.events import draw_events
from tests.second_oracle import count_differences, count_events
from tests.stream.running import Stream
from tests.topics import Topics

Change = Callable[[pa.Table], pa.Table]


def lose_one(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def double_one(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


def change_one(rows: pa.Table) -> pa.Table:
    names = pa.array([f"{name}!" if number == 0 else name for number, name in enumerate(rows["name"].to_pylist())])
    return rows.set_column(rows.schema.get_field_index("name"), rows.schema.field("name"), names)


@pytest.fixture
def stream(spark: SparkSession, layout: Layout, topics: Topics) -> Stream:
    stream = Stream.prepare(spark, layout, topics, "inner")
    topics.send(draw_events(seed=3, count=80))
    stream.run_attempt()
    return stream


def audit_after(stream: Stream, table: str, change: Change) -> Audit:
    """The audit of a table that somebody has changed behind the stream's back."""
    layout = stream.settings.layout
    progress = newest_progress(layout, 1)
    assert progress
    store.write_deltalake(
        store.open_table(layout, table), change(store.read_arrow(layout, table, generation=1)), mode="overwrite"
    )
    version = store.open_table(layout, table).version()
    return audit_generation(stream.spark, layout, stream.spec, replace(progress, **{f"{table}Version": version}))


@pytest.mark.parametrize(("change", "missing", "extra"), [(lose_one, 1, 0), (double_one, 0, 1), (change_one, 1, 1)])
def test_a_wrong_row_of_joined_is_counted_and_its_position_shown(
    stream: Stream, change: Change, missing: int, extra: int
) -> None:
    first = store.read_arrow(stream.settings.layout, "joined", generation=1).slice(0, 1).select(PLACES).to_pylist()
    audit = audit_after(stream, "joined", change)
    assert (audit.missing, audit.extra, audit.unaccounted) == (missing, extra, 0)
    assert not audit.is_clean
    assert count_differences(stream.settings.layout, "inner") == (audit.rowsCompared, missing, extra)
    kinds = ["missing"] * missing + ["extra"] * extra
    assert sorted(audit.samples, key=str) == sorted(({"kind": kind, **first[0]} for kind in kinds), key=str)


@pytest.mark.parametrize("change", [lose_one, double_one])
def test_a_record_that_is_not_stored_exactly_once_is_unaccounted_for(stream: Stream, change: Change) -> None:
    assert stream.audit().is_clean
    stored, positions = count_events(stream.settings.layout)
    assert stored == positions
    audit = audit_after(stream, "users", change)
    assert audit.unaccounted > 0
    assert not audit.is_clean
    assert count_events(stream.settings.layout) != (stored, positions)
