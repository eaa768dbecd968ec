"""The steps of maintenance on real Delta tables: nothing that is needed goes, everything else does."""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from switchyard.errors import InputError, SwitchyardError
from switchyard.layout import Layout, attempt_app_id, batch_app_id
from switchyard.settings import Settings
from switchyard.swap import flip, flip_rules, transitions
from switchyard.swap.generations import load_spec
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.compaction import replace_files
from switchyard.tables.files import list_files, write_file
from switchyard.tables.progress import batches, newest_progress
from switchyard.tables.stable_names import newest_rows
from switchyard.tables.writer import Revision, TableWriter, claim_attempt
from switchyard.upkeep.maintenance import (
    Round,
    describe,
    retire_rows,
    start_round,
    summarise,
    tend_small_tables,
    vacuum,
)
from switchyard.upkeep.referenced_versions import reference_newest_versions
from tests.unit.upkeep.generations import AT_ONCE, NOW, activate, begin, target_of

LATER = NOW + timedelta(days=8)
HOUR = timedelta(hours=1)
ASKED = Round(LATER, HOUR)


def offsets(layout: Layout, name: str, generation: int, version: int | None = None) -> list[int]:
    return sorted(row["offset"] for row in store.read_rows(layout, name, generation=generation, version=version))


def on_disk(layout: Layout, name: str) -> set[str]:
    root = Path(layout.table(name))
    return {str(path.relative_to(root)) for path in root.rglob("*.parquet") if "_delta_log" not in path.parts}


def merge_users(layout: Layout, generation: int) -> bool:
    """As compaction does it, without Spark."""
    writer = TableWriter(layout, "users", generation, 99)
    table = store.open_table(layout, "users")
    live = list_files(table, generation)
    rows = store.read_snapshot(table, "users", generation=generation).drop_columns("generation")
    return replace_files(layout, "users", generation, live, [write_file(writer.folder, generation, rows, False)])


def test_the_retention_has_a_lower_bound(settings: Settings) -> None:
    with pytest.raises(InputError, match="too short"):
        start_round(settings, 0.5)
    assert start_round(settings).retention == timedelta(hours=24)
    assert start_round(settings, 2, dry_run=True).dry_run
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Settings(vacuum_retention_hours=0.9)


def test_on_an_empty_installation_there_is_nothing_to_do(settings: Settings) -> None:
    results = {"retire_rows": retire_rows(settings, ASKED), "small_tables": tend_small_tables(settings, ASKED)}
    summary = summarise(results | {"vacuum": vacuum(settings, ASKED)})
    assert (summary["filesBefore"], summary["filesDeleted"], summary["generationsRemoved"]) == (0, 0, [])
    assert "0 files became 0" in describe(summary, dry_run=False)


def test_a_retired_generation_goes_after_its_keep_time_but_not_the_way_back(layout: Layout, settings: Settings) -> None:
    history = HistoryStore(layout)
    for generation in (1, 2, 3):
        begin(layout, generation).commit(0)
        activate(history, generation)
    assert retire_rows(settings, Round(NOW + timedelta(days=6), HOUR))["generations"] == []
    assert retire_rows(settings, replace(ASKED, dry_run=True))["generations"] == [1]
    assert load_spec(layout, 1) is not None
    assert retire_rows(settings, ASKED) == {"generations": [1], "files": 2}
    assert [offsets(layout, "users", generation) for generation in (1, 2, 3)] == [[], [0], [0]]
    assert [load_spec(layout, generation) is None for generation in (1, 2, 3)] == [True, False, False]
    assert not Path(layout.checkpoint(1)).exists()
    assert Path(layout.checkpoint(2)).exists()
    assert flip_rules.find_resumable(history.ledger(), history.status_row(), target_of(1)) is None
    assert flip_rules.find_resumable(history.ledger(), history.status_row(), target_of(2)) == 2
    assert [(e.event, e.generation) for e in history.ledger().entries][-1] == (Event.RETIRED, 1)
    assert retire_rows(settings, ASKED) == {"generations": [], "files": 0}


def test_who_dies_in_a_removal_leaves_the_rest_to_the_next_round(
    layout: Layout, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for generation in (1, 2, 3):
        begin(layout, generation).commit(0)
        activate(HistoryStore(layout), generation)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("switchyard.upkeep.maintenance.remove_checkpoint", die)
        with pytest.raises(KeyboardInterrupt):
            retire_rows(settings, ASKED)
    assert load_spec(layout, 1) is not None
    assert retire_rows(settings, ASKED)["generations"] == [1]
    assert load_spec(layout, 1) is None


def test_a_generation_that_is_asked_for_again_is_not_removed(layout: Layout, settings: Settings) -> None:
    history = HistoryStore(layout)
    for generation in (1, 2, 3):
        begin(layout, generation).commit(0)
        activate(history, generation)

    transitions.ask_once(history, "again", "test", 1, target_of(1), "resume", deadline=NOW + AT_ONCE.ready_deadline)
    assert not transitions.try_remove(history, 1, LATER, timedelta())
    assert retire_rows(settings, ASKED)["generations"] == []
    assert offsets(layout, "users", 1) == [0]


def test_a_commit_in_the_place_of_a_file_that_is_gone_is_void(layout: Layout) -> None:
    writing = begin(layout, 1)
    writing.commit(0)
    writing.commit(1)
    live = list_files(store.open_table(layout, "users"), 1)
    assert merge_users(layout, 1)
    merged = store.read_snapshot(store.open_table(layout, "users"), "users").drop_columns("generation")
    before = store.open_table(layout, "users").version()
    added = [write_file(writing.writers["users"].folder, 1, merged, False)]
    assert not replace_files(layout, "users", 1, live, added)
    assert store.open_table(layout, "users").version() == before
    assert offsets(layout, "users", 1) == [0, 1]


def test_a_stream_that_replaces_files_and_compaction_never_lose_or_double_a_row(layout: Layout) -> None:
    """The writer rewrites the file of an older row in each batch, as natural does, against a compaction in a loop."""
    writing, stop, merged, lost = begin(layout, 1), threading.Event(), [0], [0]
    writer = writing.writers["users"]

    def compact() -> None:
        while not stop.is_set():
            done = merge_users(layout, 1)
            merged[0] += done
            lost[0] += not done

    def revise(table: DeltaTable) -> Revision:
        from switchyard.tables import files
        from switchyard.tables.removal import generation_files

        path, size = generation_files(table, 1)[0]
        kept = writer.folder.read(path)
        return Revision([writer.write(kept)], [files.remove_file(1, path, size)])

    writing.commit(0)
    thread = threading.Thread(target=compact)
    thread.start()
    try:
        for batch_id in range(1, 60, 2):
            writing.commit(batch_id, ("users",))
            writer.commit(batch_id + 1, revise)
    finally:
        stop.set()
        thread.join(60)
    assert offsets(layout, "users", 1) == [0, *range(1, 60, 2)]
    assert merged[0] > 0
    assert lost[0] > 0


def test_vacuum_keeps_what_progress_names_and_takes_the_rest(layout: Layout, settings: Settings) -> None:
    history = HistoryStore(layout)
    writing = begin(layout, 1)
    activate(history, 1)
    for batch_id in range(3):
        writing.commit(batch_id)
    writing.report(2, NOW)
    pinned = writing.writers["users"].version
    assert merge_users(layout, 1)
    small = on_disk(layout, "users")
    vacuum(settings, ASKED)
    assert on_disk(layout, "users") == small
    assert offsets(layout, "users", 1, pinned) == [0, 1, 2]
    writing.commit(3)
    writing.report(3, LATER - timedelta(hours=2))
    found = vacuum(settings, replace(ASKED, dry_run=True))
    assert on_disk(layout, "users") > small
    done = vacuum(settings, ASKED)
    for tables in (found["tables"], done["tables"]):
        assert {table["table"]: table["files"] for table in tables if table["files"]} == {"users": 3}
    assert len(on_disk(layout, "users")) == 2
    assert offsets(layout, "users", 1) == [0, 1, 2, 3]
    assert sorted(row["offset"] for row in newest_rows(layout, "users_ui", 10)) == [0, 1, 2, 3]
    assert vacuum(settings, ASKED)["tables"][0]["files"] == 0


def test_vacuum_does_not_open_each_version_of_a_busy_stream(
    layout: Layout, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    activate(HistoryStore(layout), 1)
    writing = begin(layout, 1)
    for batch_id in range(20):
        writing.commit(batch_id)
        writing.report(batch_id, datetime.now(UTC))
    opened: list[str] = []

    def count(layout: Layout, name: str, version: int | None) -> DeltaTable:
        opened.append(name)
        return open_version(layout, name, version)

    open_version = store.open_version
    monkeypatch.setattr(store, "open_version", count)
    vacuum(settings, Round(datetime.now(UTC), HOUR))
    assert opened.count("users") < 10
    assert offsets(layout, "users", 1, writing.writers["users"].version - 10) == list(range(10))


def test_a_version_that_a_reader_may_have_opened_in_the_retention_stays(layout: Layout, settings: Settings) -> None:
    """The stream was idle for days; its next batch came a moment before the vacuum."""
    activate(HistoryStore(layout), 1)
    writing = begin(layout, 1)
    writing.commit(0)
    writing.commit(1)
    opened = writing.writers["users"].version
    writing.report(1, NOW)
    writing.report(1, LATER - timedelta(minutes=5), is_batch=False)
    assert merge_users(layout, 1)
    writing.commit(2)
    writing.report(2, LATER - timedelta(seconds=1))
    vacuum(settings, ASKED)
    assert offsets(layout, "users", 1, opened) == [0, 1]


def test_files_of_a_batch_under_way_stay_and_those_of_dead_attempts_go(layout: Layout, settings: Settings) -> None:
    activate(HistoryStore(layout), 1)
    writing = begin(layout, 1)
    writing.commit(0)
    writing.report(0, NOW - timedelta(days=1))
    leavings = ["generation=1/bulk-1-1/part-0.parquet", "generation=1/bulk-1-2/match=late/part-0.parquet"]
    root = Path(layout.table("users"))
    for relative in leavings:
        (root / relative).parent.mkdir(parents=True)
        (root / relative).write_bytes(b"x")
    vacuum(settings, ASKED)
    assert on_disk(layout, "users") >= set(leavings)
    writing.report(1, LATER)
    vacuum(settings, ASKED)
    assert not on_disk(layout, "users") & set(leavings)
    assert not (root / "generation=1/bulk-1-1").exists()
    assert offsets(layout, "users", 1) == [0]


def test_vacuum_refuses_a_table_that_misses_files(layout: Layout, settings: Settings) -> None:
    begin(layout, 1).commit(0)
    for path in on_disk(layout, "users"):
        (Path(layout.table("users")) / path).unlink()
    with pytest.raises(SwitchyardError, match="the table users names 1 files that its folder does not have"):
        vacuum(settings, ASKED)


def test_markers_and_needed_versions_outlive_the_cut_of_the_log(layout: Layout, settings: Settings) -> None:
    history, open_before = HistoryStore(layout), HistoryStore(layout)
    activate(history, 1)
    flip.withdraw(history, 4)
    writing = begin(layout, 1)
    for batch_id in range(12):
        writing.commit(batch_id)
        writing.report(batch_id, NOW + timedelta(seconds=batch_id))
    status_row = history.status_row()
    first = vacuum(settings, ASKED)
    writing.commit(12)
    writing.report(12, NOW + timedelta(seconds=12))
    versions = {name: writer.version for name, writer in writing.writers.items()}
    writing.commit(13)
    second = vacuum(settings, ASKED)
    assert sum(table["log_files"] for table in [*first["tables"], *second["tables"]]) > 20
    assert not (Path(layout.table("users")) / "_delta_log" / "00000000000000000000.json").exists()
    for name in ("users", "accounts"):
        table = DeltaTable(layout.table(name))
        assert table.transaction_version(batch_app_id(1)) == 13
        assert table.transaction_version(attempt_app_id(1)) == writing.attempt
        assert offsets(layout, name, 1, versions[name]) == list(range(13))
    assert HistoryStore(layout).status_row() == history.status_row() == open_before.status_row() == status_row
    writing.commit(11)
    writing.commit(14)
    assert offsets(layout, "users", 1) == list(range(15))
    assert claim_attempt(layout, 1) == writing.attempt + 1


def test_a_retired_generation_is_read_at_present_versions_and_holds_no_log(layout: Layout, settings: Settings) -> None:
    old, new = begin(layout, 1), None
    activate(HistoryStore(layout), 1)
    old.commit(0)
    old.report(0, NOW)
    new = begin(layout, 2)
    activate(HistoryStore(layout), 2)
    for batch_id in range(3):
        new.commit(batch_id)
        new.report(batch_id, NOW)
    last = newest_progress(layout, 1)
    assert last is not None
    vacuum(settings, ASKED)
    renewed = newest_progress(layout, 1)
    assert renewed is not None
    assert renewed.usersVersion == DeltaTable(layout.table("users")).version() > last.usersVersion
    assert renewed.at - last.at < timedelta(seconds=1)
    assert (renewed.batchId, renewed.endOffsets, renewed.startOffsets) == (0, last.endOffsets, None)
    assert offsets(layout, "users", 1, renewed.usersVersion) == [0]
    assert not reference_newest_versions(layout, 1)


def test_a_generation_that_ended_in_the_middle_of_a_batch_keeps_its_versions(layout: Layout) -> None:
    writing = begin(layout, 1)
    writing.commit(0)
    writing.report(0, NOW)
    writing.commit(1, ("users",))
    assert not reference_newest_versions(layout, 1)


def test_progress_of_generations_that_are_over_goes(layout: Layout, settings: Settings) -> None:
    history = HistoryStore(layout)
    for generation in (1, 2, 3):
        writing = begin(layout, generation)
        activate(history, generation)
        writing.commit(0)
        writing.report(0, NOW)
    retire_rows(settings, ASKED)
    tended = {table["table"]: table for table in tend_small_tables(settings, ASKED)["tables"]}
    assert tended["progress"]["rows_removed"] == 1
    assert [newest_progress(layout, generation) is None for generation in (1, 2, 3)] == [True, False, False]
    assert asdict(batches(layout, 3)[0])["inputRows"] == 2
