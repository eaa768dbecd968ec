"""Compaction between the batches of a real stream: the same rows in fewer files, laid out as the stream needs them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from switchyard.layout import BIG_TABLES, Layout
from switchyard.stream import runner
from switchyard.stream.compaction import compact_tables, sort_key
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import merging, store
from switchyard.tables.compaction import count_overlaps
from switchyard.tables.files import list_files
from tests.events import draw_events
from tests.second_oracle import join_with_duckdb, read_joined
from tests.stream.running import Stream
from tests.topics import Topics

ROUNDS = 2
EVENTS = 240


def rows_of(layout: Layout) -> dict[str, list[str]]:
    return {name: sorted(map(repr, store.read_rows(layout, name))) for name in BIG_TABLES}


def ask_for_it(stream: Stream) -> None:
    """Its request, as the history would have it: maintenance looks there for generations."""
    from switchyard.swap import transitions

    spec = stream.spec
    history = HistoryStore(stream.settings.layout)
    transitions.ask_once(history, "first", "test", spec.generation, spec.target, spec.start)


@pytest.mark.parametrize("join_type", ["left", "natural", "asof"])
def test_compacted_files_hold_the_same_rows_and_the_stream_revises_them(
    spark: SparkSession, layout: Layout, topics: Topics, join_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if join_type != "left":
        # Else the stream puts all that it revises into one file, and nothing is left to compact.
        monkeypatch.setattr("switchyard.tables.merging.SMALLEST_BYTES", 1)
    stream = Stream.prepare(spark, layout, topics, join_type, max_offsets_per_trigger=20)
    ask_for_it(stream)
    keeping = replace(stream.settings.keeping, file_bytes=12_000, compact_after=timedelta())
    events = draw_events(seed=11, count=EVENTS * ROUNDS, people=60)
    for number in range(ROUNDS):
        topics.send(events[number * EVENTS : (number + 1) * EVENTS])
        stream.run_attempt()
        before = rows_of(layout)
        planned = compact_tables(lambda: spark, layout, keeping, dry_run=True)
        done = compact_tables(lambda: spark, layout, keeping)
        assert rows_of(layout) == before
        assert [(plan.table, plan.files_before) for plan in planned] == [(c.table, c.files_before) for c in done]
        assert {c.table for c in done} >= {"users", "accounts", "joined"}
        assert all(c.files_after < c.files_before and c.left_alone == 0 for c in done), done
        assert_layout(layout, join_type)
    assert compact_tables(lambda: spark, layout, replace(keeping, compact_after=timedelta(hours=1))) == []
    audit = stream.audit()
    assert (audit.missing, audit.extra, audit.unaccounted, audit.holes) == (0, 0, 0, 0), audit.samples
    assert read_joined(layout) == join_with_duckdb(layout, join_type)


def assert_layout(layout: Layout, join_type: str) -> None:
    """Sorted by the key, cut into more than one file, and unmatched rows apart."""
    live = list_files(store.open_table(layout, "joined"), 1, sort_key("joined", join_type))
    assert all(file.unmatched_rows in (0, file.rows) for file in live)
    paired = [file for file in live if file.unmatched_rows == 0]
    assert len(paired) > 1
    assert sum(file.is_across_partitions for file in paired) <= ROUNDS
    assert max(count_overlaps([file for file in paired if not file.is_across_partitions])) <= 4, paired


@pytest.mark.parametrize("join_type", ["left", "natural"])
def test_a_stream_merges_its_small_files_as_it_goes(
    spark: SparkSession, layout: Layout, topics: Topics, join_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (merging, runner):
        monkeypatch.setattr(module, "FAN_IN", 4)
    stream = Stream.prepare(spark, layout, topics, join_type, max_offsets_per_trigger=15)
    topics.send(draw_events(seed=12, count=EVENTS, people=40))
    batches = stream.run_attempt().progress.position.batch_id + 1
    live = {name: len(list_files(store.open_table(layout, name), 1)) for name in (*BIG_TABLES, "progress")}
    assert batches >= 8
    assert max(live.values()) <= 8, live
    audit = stream.audit()
    assert (audit.missing, audit.extra, audit.unaccounted, audit.holes) == (0, 0, 0, 0), audit.samples
    assert read_joined(layout) == join_with_duckdb(layout, join_type)
