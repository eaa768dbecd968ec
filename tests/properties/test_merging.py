"""Merging of small files: however long a stream runs, few files are live, and no row is written again too often."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from switchyard.layout import Layout
from switchyard.tables import files, merging, store
from switchyard.tables.compaction import replace_files
from switchyard.tables.files import LiveFile, list_files
from switchyard.tables.folders import Folder
from switchyard.tables.merging import FAN_IN, choose_merges, level_of, merge_small
from switchyard.tables.schemas import SCHEMAS

MOST_BYTES = 4 * 2**20
KEY = ["partition", "offset"]


def file_of(number: int, size: int, unmatched: int = 0) -> LiveFile:
    return LiveFile(f"f{number}", size, 1, number, unmatched_rows=unmatched)


@settings(deadline=None, max_examples=25)
@given(st.integers(1_000, 200_000), st.integers(100, 3_000))
@example(174_763, 1_100)
def test_few_files_stay_and_each_byte_is_written_a_few_times(size: int, batches: int) -> None:
    live: list[LiveFile] = []
    appended = written = 0
    for number in range(batches):
        live.append(file_of(number, size))
        appended += size
        if number % FAN_IN:
            continue
        for group in choose_merges(live, MOST_BYTES):
            assert len(group) > 1
            whole = sum(file.size for file in group)
            assert whole <= MOST_BYTES
            written += whole
            live = [file for file in live if file not in group] + [file_of(group[-1].written, whole)]
    full = appended // (MOST_BYTES // 2) + 1
    levels = 2 + level_of(MOST_BYTES)
    assert len(live) <= full + 2 * FAN_IN * levels
    assert written <= appended * (levels + 1)
    assert sum(file.size for file in live) == appended


def test_rows_without_an_account_stay_among_themselves() -> None:
    live = [file_of(n, 1000, unmatched=n % 2) for n in range(2 * FAN_IN)]
    groups = choose_merges(live, MOST_BYTES)
    assert [{file.unmatched_rows for file in group} for group in groups] == [{0}, {1}]
    assert [len(group) for group in groups] == [FAN_IN, FAN_IN]


def test_what_is_large_or_not_enough_is_left_alone() -> None:
    assert choose_merges([file_of(n, MOST_BYTES // 2) for n in range(100)], MOST_BYTES) == []
    assert choose_merges([file_of(n, 1000) for n in range(FAN_IN - 1)], MOST_BYTES) == []
    assert level_of(1) == level_of(merging.SMALLEST_BYTES - 1) == 0
    assert level_of(merging.SMALLEST_BYTES * FAN_IN + 1) == 1 + math.floor(1)


def append_users(layout: Layout, count: int, generation: int = 1) -> None:
    folder = Folder.at(layout.table("users"))
    schema = pa.schema([field for field in SCHEMAS["users"] if field.name != "generation"])
    for number in range(count):
        row = {"userId": f"u{number}", "ts": datetime.now(UTC), "topic": "users", "partition": number % 2}
        rows = pa.Table.from_pylist([row | {"offset": count - number}], schema=schema)
        added = files.write_file(folder, generation, rows)
        store.transact(layout, "users", lambda _, added=added: store.Change(added=[added]))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path))


def test_the_same_rows_are_in_one_file_sorted_and_others_are_untouched(layout: Layout) -> None:
    append_users(layout, FAN_IN)
    append_users(layout, 3, generation=2)
    before = store.read_rows(layout, "users")
    table = store.open_table(layout, "users")
    assert merge_small(layout, table, "users", 1, KEY, MOST_BYTES) == FAN_IN
    after = store.open_table(layout, "users")
    assert sorted(map(repr, store.read_rows(layout, "users"))) == sorted(map(repr, before))
    (one,) = list_files(after, 1)
    assert len(list_files(after, 2)) == 3
    rows = Folder.at(layout.table("users")).read(one.path)
    positions = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert positions == sorted(positions)
    assert merge_small(layout, after, "users", 1, KEY, MOST_BYTES) == 0


def test_a_file_that_has_gone_meanwhile_makes_the_merge_void(layout: Layout) -> None:
    append_users(layout, FAN_IN)
    table = store.open_table(layout, "users")
    first = list_files(table, 1)[0]
    folder = Folder.at(layout.table("users"))
    replacing = files.write_file(folder, 1, folder.read(first.path), data_change=False)
    assert replace_files(layout, "users", 1, [first], [replacing])
    before = store.read_rows(layout, "users")
    assert merge_small(layout, table, "users", 1, KEY, MOST_BYTES) == 0
    assert sorted(map(repr, store.read_rows(layout, "users"))) == sorted(map(repr, before))
    known = {file.path for file in list_files(store.open_table(layout, "users"), 1)}
    assert set(folder.list_parquet("generation=1")) - known == {first.path}, "nothing is left behind"
