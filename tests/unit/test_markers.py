"""Markers followed by version are those that delta-rs finds; a written file is described as its footer says."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from switchyard.layout import Layout
from switchyard.tables import files, markers, store
from switchyard.tables.folders import Folder
from switchyard.tables.markers import Markers

APP_IDS = ("a", "b")


def commit(layout: Layout, **versions: int) -> None:
    store.transact(layout, "users", lambda _: store.Change(markers=versions))


@pytest.fixture
def table(layout: Layout) -> store.DeltaTable:
    return store.open_table(layout, "users")


@pytest.fixture
def followed(layout: Layout, table: store.DeltaTable) -> Markers:
    return Markers(table, Folder.at(layout.table("users")), APP_IDS)


def assert_same(table: store.DeltaTable, followed: Markers) -> None:
    found = {app_id: followed.get(app_id) for app_id in APP_IDS}
    assert found == {app_id: table.transaction_version(app_id) for app_id in APP_IDS}


def test_markers_are_as_of_the_version_that_the_table_is_open_at(
    layout: Layout, table: store.DeltaTable, followed: Markers
) -> None:
    assert_same(table, followed)
    commit(layout, a=1, other=9)
    assert (followed.get("a"), followed.get("other")) == (None, None)
    table.update_incremental()
    assert (followed.get("a"), followed.get("b"), followed.get("other")) == (1, None, None)
    for versions in ({"b": 5}, {"other": 1}, {"a": 2, "b": 6}, {"a": 3}):
        commit(layout, **versions)
    table.update_incremental()
    assert (followed.get("a"), followed.get("b")) == (3, 6)
    assert_same(table, followed)


def test_only_new_entries_of_the_log_are_read(
    layout: Layout, table: store.DeltaTable, followed: Markers, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    read_markers = markers.read_markers
    monkeypatch.setattr(
        markers, "read_markers", lambda folder, version: read.append(version) or read_markers(folder, version)
    )
    commit(layout, a=1)
    table.update_incremental()
    followed.get("a")
    for number in (2, 3):
        commit(layout, a=number)
    table.update_incremental()
    assert [followed.get("a") for _ in range(3)] == [3, 3, 3]
    assert read == [2, 3]


def test_entries_that_were_cleaned_up_are_made_up_for(
    layout: Layout, table: store.DeltaTable, followed: Markers
) -> None:
    commit(layout, a=1)
    table.update_incremental()
    assert followed.get("a") == 1
    for number in range(2, 6):
        commit(layout, a=number, b=number * 10)
    store.open_table(layout, "users").create_checkpoint()
    for version in range(5):
        Folder.at(layout.table("users")).delete_file(f"_delta_log/{version:020}.json")
    commit(layout, b=70)
    table.update_incremental()
    assert (followed.get("a"), followed.get("b")) == (5, 70)
    assert_same(table, followed)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_written_file_is_described_as_its_footer_says(layout: Layout, count: int) -> None:
    folder = Folder.at(layout.table("accounts"))
    rows = pa.table(
        {
            "userId": pa.array([f"u{number}" for number in range(count)], pa.string()),
            "balance": pa.array([math.nan if number % 7 == 3 else number / 3 for number in range(count)], pa.float64()),
            "ts": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * count, pa.timestamp("us", "UTC")),
            "offset": pa.array([None if number % 5 == 2 else number for number in range(count)], pa.int64()),
        }
    )
    written = files.write_file(folder, 1, rows)
    described = files.describe_file(folder, 1, written.path)
    assert (written.size, written.stats) == (described.size, described.stats)
    assert folder.read(written.path).drop_columns("balance") == rows.drop_columns("balance")
