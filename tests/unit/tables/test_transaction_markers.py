"""Markers followed by version are those that delta-rs finds."""

from __future__ import annotations

import pytest

from switchyard.layout import Layout
from switchyard.tables import store, transaction_markers
from switchyard.tables.folders import Folder
from switchyard.tables.transaction_markers import Markers

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
    read_markers = transaction_markers.read_markers
    monkeypatch.setattr(
        transaction_markers,
        "read_markers",
        lambda folder, version: read.append(version) or read_markers(folder, version),
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
