"""Merging and shortening small tables, while others read and write them."""

from __future__ import annotations

import threading
from datetime import timedelta

from deltalake import DeltaTable

from switchyard.layout import Layout
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.logs import write_log
from switchyard.tables.progress import batches, newest_progress
from switchyard.tables.stable_names import newest_rows
from switchyard.upkeep.small_tables import merge_small, shorten_logs, shorten_progress
from tests.unit.upkeep.generations import NOW, activate, begin

LATER = NOW + timedelta(days=8)
HOUR = timedelta(hours=1)


def test_the_history_is_merged_while_a_store_is_open(layout: Layout) -> None:
    history = HistoryStore(layout)
    for generation in (1, 2, 3):
        activate(history, generation)
    before = history.ledger()
    assert merge_small(layout, "swap_history", dry_run=True).files_before > 5
    done = merge_small(layout, "swap_history")
    assert (done.files_after, done.rows_removed) == (1, 0)
    assert len(DeltaTable(layout.table("swap_history")).file_uris()) == 1
    assert history.ledger() == HistoryStore(layout).ledger() == before
    activate(history, 4)
    assert history.ledger().entries[: len(before.entries)] == before.entries
    assert HistoryStore(layout).ledger() == history.ledger()


def test_lines_that_are_written_while_logs_are_merged_stay(layout: Layout) -> None:
    stop = threading.Event()
    written = [0]

    def write() -> None:
        while not stop.is_set():
            write_log(layout, f"line {written[0]}")
            written[0] += 1

    write_log(layout, "before")
    thread = threading.Thread(target=write)
    thread.start()
    try:
        merged = [shorten_logs(layout, NOW - HOUR) for _ in range(10)]
    finally:
        stop.set()
        thread.join(60)
    assert max(done.files_before for done in merged) > 1
    lines = [row["msg"] for row in store.read_rows(layout, "logs")]
    assert sorted(lines) == sorted(["before", *(f"line {number}" for number in range(written[0]))])


def test_old_lines_go(layout: Layout) -> None:
    for days in (40, 20, 1):
        store.append_rows(layout, "logs", [{"ts": NOW - timedelta(days=days), "level": "INFO", "msg": str(days)}])
    done = shorten_logs(layout, NOW - timedelta(days=30))
    assert (done.files_before, done.files_after, done.rows_removed) == (3, 1, 1)
    assert [row["msg"] for row in newest_rows(layout, "orchestrator_logs", 9)] == ["20", "1"]


def test_progress_is_folded_and_the_newest_row_stays(layout: Layout) -> None:
    writing = begin(layout, 1)
    for batch_id in range(6):
        writing.report(batch_id, NOW + timedelta(seconds=10 * batch_id))
        writing.report(batch_id, NOW + timedelta(seconds=10 * batch_id + 5), is_batch=False)
    newest, before = newest_progress(layout, 1), batches(layout, 1)
    done = shorten_progress(layout, 1, NOW + timedelta(seconds=40))
    assert (done.files_before, done.files_after) == (12, 1)
    after = batches(layout, 1)
    assert [row.batchId for row in after] == [3, 4, 5]
    assert sum(row.inputRows for row in after) == sum(row.inputRows for row in before)
    assert (after[0].startOffsets, after[0].endOffsets) == (before[0].startOffsets, before[3].endOffsets)
    assert after[1].startOffsets == after[0].endOffsets
    assert newest_progress(layout, 1) == newest
    shorten_progress(layout, 1, LATER)
    assert [(row.batchId, row.inputRows) for row in batches(layout, 1)] == [(4, 10), (5, 2)]
    assert newest_progress(layout, 1) == newest
    assert shorten_progress(layout, 1, None).rows_removed == 3
    assert newest_progress(layout, 1) is None
