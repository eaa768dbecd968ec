"""Writers that meet in one log: nobody gets an error for it, and what each has written is there once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from switchyard.errors import UnwritableError
from switchyard.layout import Layout
from switchyard.tables import store
from switchyard.tables.logs import write_log
from switchyard.tables.progress import Progress, batches, report
from switchyard.tables.schemas import SCHEMAS
from switchyard.upkeep.small_tables import merge_small, shorten_logs, shorten_progress

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = Progress(1, 1, 0, NOW, 1, 1.0, 1, 0, 1, 1, 1, 1, 0, 0, "0", "1")


def batch(number: int) -> Progress:
    at = NOW + timedelta(seconds=number)
    return replace(FIRST, batchId=number, at=at, startOffsets=str(number), endOffsets=str(number + 1))


def write_line(layout: Layout, number: int, table: DeltaTable | None = None) -> None:
    row = {"ts": NOW + timedelta(seconds=number), "level": "INFO", "msg": str(number)}
    store.append_rows(layout, "logs", [row], table)


def read_lines(layout: Layout) -> list[int]:
    return sorted(int(row["msg"]) for row in store.read_rows(layout, "logs"))


def cut_log(layout: Layout) -> None:
    """What maintenance leaves of a log whose every version is older than the retention."""
    table = store.open_table(layout, "logs")
    table.create_checkpoint()
    for version in range(table.version()):
        Path(layout.table("logs"), f"_delta_log/{version:020}.json").unlink()


def overwrite(layout: Layout) -> None:
    rows = store.read_rows(layout, "logs")
    store.transact(layout, "logs", lambda _: store.Change(rows=rows, mode="overwrite"))


MEETINGS: dict[str, Callable[[Layout], object]] = {
    "drop": lambda layout: shorten_logs(layout, NOW + timedelta(seconds=2)),
    "merge": lambda layout: merge_small(layout, "logs"),
    "overwrite": overwrite,
    "cut": cut_log,
    "drop and cut": lambda layout: (shorten_logs(layout, NOW + timedelta(seconds=2)), cut_log(layout)),
}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_a_table_that_was_kept_open_takes_rows_whatever_was_committed_meanwhile(layout: Layout, meeting: str) -> None:
    kept = store.open_table(layout, "logs")
    for number in range(5):
        write_line(layout, number, kept)
    MEETINGS[meeting](layout)
    before = read_lines(layout)
    for number in (5, 6):
        write_line(layout, number, kept)
    assert read_lines(layout) == [*before, 5, 6]


@pytest.mark.parametrize("meeting", MEETINGS)
def test_so_does_one_whose_log_moves_on_between_the_look_and_the_commit(
    layout: Layout, meeting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        write_line(layout, number)
    commit = store._commit

    def meet_once(table: DeltaTable, name: str, change: store.Change) -> None:
        monkeypatch.setattr(store, "_commit", commit)
        MEETINGS[meeting](layout)
        commit(table, name, change)

    monkeypatch.setattr(store, "_commit", meet_once)
    write_log(layout, "5")
    assert read_lines(layout) == list(range(2 if "drop" in meeting else 0, 6))


def test_a_driver_reports_while_its_progress_is_summarized(layout: Layout) -> None:
    """`a concurrent transaction deleted data this operation read` once ended a driver here."""
    kept = store.open_table(layout, "progress")
    for number in range(40):
        report(layout, batch(number), kept)
        if number % 4 == 3:
            shorten_progress(layout, 1, NOW + timedelta(seconds=number))
    assert sum(row.inputRows for row in batches(layout, 1)) == 40
    assert batches(layout, 1)[-1] == batch(39)


def test_a_commit_that_fails_for_another_reason_says_so(layout: Layout) -> None:
    write_line(layout, 1)
    table = store.open_table(layout, "logs")
    with pytest.raises(DeltaError, match="schema"):
        store._is_next(table, lambda: write_deltalake(table, pa.table({"other": [1]}), mode="append"))


def block_next_version(layout: Layout) -> Path:
    """Nobody can commit the next version of `logs` while this folder is in its place, and there is no such version."""
    version = store.open_table(layout, "logs").version() + 1
    blocked = Path(layout.table("logs"), f"_delta_log/{version:020}.json")
    blocked.mkdir()
    return blocked


def test_a_commit_that_is_refused_without_another_writer_says_so(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_line(layout, 1)
    block_next_version(layout)
    monkeypatch.setattr(store, "PAUSES", (0.0, 0.0))
    with pytest.raises(
        UnwritableError, match="takes no commit after version 1, and nobody else has changed it"
    ) as told:
        write_line(layout, 2)
    assert isinstance(told.value.__cause__, CommitFailedError)
    assert str(told.value.__cause__) in str(told.value)


def test_a_commit_that_is_refused_for_a_moment_is_tried_again_after_growing_pauses(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_line(layout, 1)
    blocked, tries = block_next_version(layout), list[float]()
    commit = store._commit

    def note_try(table: DeltaTable, name: str, change: store.Change) -> None:
        tries.append(time.monotonic())
        if len(tries) == 4:
            blocked.rmdir()
        commit(table, name, change)

    monkeypatch.setattr(store, "_commit", note_try)
    write_line(layout, 2)
    assert read_lines(layout) == [1, 2]
    assert len(tries) == 4
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert all(pause >= least for pause, least in zip(pauses, store.PAUSES, strict=False))
    assert list(store.PAUSES) == sorted(store.PAUSES)
    assert sum(store.PAUSES) < 10


def test_a_lost_race_is_run_again_without_a_pause(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    write_line(layout, 0)
    commit, lost = store._commit, range(1, 20)
    others = iter(lost)

    def come_second(table: DeltaTable, name: str, change: store.Change) -> None:
        if (number := next(others, None)) is not None:
            with monkeypatch.context() as patch:
                patch.setattr(store, "_commit", commit)
                write_line(layout, number)
        commit(table, name, change)

    monkeypatch.setattr(store, "PAUSES", (600.0,))
    monkeypatch.setattr(store, "_commit", come_second)
    began = time.monotonic()
    write_line(layout, 20)
    assert time.monotonic() - began < 300
    assert read_lines(layout) == [0, *lost, 20]


def test_of_several_that_create_a_table_one_does_and_all_write_to_it(layout: Layout) -> None:
    errors: list[Exception] = []
    barrier = threading.Barrier(6)

    def write(number: int) -> None:
        barrier.wait()
        try:
            write_line(layout, number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (errors, read_lines(layout)) == ([], list(range(6)))
    log = Path(layout.table("logs"), "_delta_log")
    assert ["metaData" in (log / name).read_text() for name in sorted(os.listdir(log))] == [True] + [False] * 6


def test_progress_of_an_earlier_version_is_read_shortened_and_gets_the_new_columns(layout: Layout) -> None:
    known = [field for field in SCHEMAS["progress"] if field.name not in ("movedAt", "executors")]
    rows = pa.Table.from_pylist([asdict(batch(number)) for number in range(3)], schema=pa.schema(known))
    write_deltalake(layout.table("progress"), rows, partition_by=["generation"])
    assert batches(layout, 1) == [batch(number) for number in range(3)]
    kept = store.open_table(layout, "progress")
    moved = replace(batch(3), movedAt=NOW, executors=2)
    report(layout, moved, kept)
    report(layout, batch(4))
    assert batches(layout, 1)[3:] == [moved, batch(4)]
    shorten_progress(layout, 1, NOW)
    assert batches(layout, 1) == [*(batch(number) for number in range(3)), moved, batch(4)]
    names = [field.name for field in store.open_table(layout, "progress").schema().fields]
    assert names == SCHEMAS["progress"].names


def test_progress_of_an_earlier_version_can_be_shortened_before_anybody_reports(layout: Layout) -> None:
    known = [field for field in SCHEMAS["progress"] if field.name not in ("movedAt", "executors")]
    for number in range(2):
        rows = pa.Table.from_pylist([asdict(batch(number))], schema=pa.schema(known))
        write_deltalake(layout.table("progress"), rows, partition_by=["generation"], mode="append")
    shorten_progress(layout, 1, NOW)
    assert batches(layout, 1) == [batch(0), batch(1)]
    report(layout, replace(batch(2), executors=1))
    assert [row.executors for row in batches(layout, 1)] == [None, None, 1]


def test_several_that_add_the_same_column_do_it_once(layout: Layout) -> None:
    old = pa.schema([field for field in SCHEMAS["logs"] if field.name != "swapId"])
    write_deltalake(layout.table("logs"), old.empty_table())
    tables = [store.open_table(layout, "logs") for _ in range(3)]
    for table in tables:
        store.add_new_columns(table, "logs")
        assert [field.name for field in table.schema().fields] == SCHEMAS["logs"].names
    assert store.open_table(layout, "logs").version() == 1
    write_line(layout, 1)
