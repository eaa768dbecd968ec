"""Progress, logs and the stable names in real Delta tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from switchyard.errors import InputError
from switchyard.layout import BIG_TABLES, SMALL_TABLES, Layout
from switchyard.tables import stable_names, store
from switchyard.tables.logs import write_log
from switchyard.tables.progress import batches, newest_progress, report
from switchyard.tables.schemas import SCHEMAS
from tests.histories import make_active, progress_row

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_table_has_columns_and_a_place() -> None:
    assert set(SCHEMAS) == {*BIG_TABLES, *SMALL_TABLES}


def test_newest_progress_is_the_last_of_the_newest_attempt(layout: Layout) -> None:
    for attempt, second in ((1, 0), (2, 5), (2, 9)):
        report(layout, progress_row(attempt=attempt, at=NOW + timedelta(seconds=second), batchId=second))
    found = newest_progress(layout, 1)
    assert found is not None
    assert (found.attempt, found.batchId) == (2, 9)
    assert newest_progress(layout, 2) is None


def test_newest_progress_is_the_newest_batch_after_the_clock_was_put_back(layout: Layout) -> None:
    for batch_id, hours in ((3, 0), (4, 1), (4, 1.001), (5, 0.001)):
        report(layout, progress_row(batchId=batch_id, at=NOW + timedelta(hours=hours), joinedVersion=batch_id))
    found = newest_progress(layout, 1)
    assert found is not None
    assert (found.batchId, found.joinedVersion) == (5, 5)


def test_a_replaced_attempt_that_still_reports_is_not_listened_to(layout: Layout) -> None:
    report(layout, progress_row(attempt=2, batchId=11, at=NOW))
    report(layout, progress_row(attempt=1, batchId=10, at=NOW + timedelta(seconds=1)))
    found = newest_progress(layout, 1)
    assert found is not None
    assert (found.attempt, found.batchId) == (2, 11)


def test_a_batch_that_was_reported_twice_counts_once(layout: Layout) -> None:
    for second, rows in ((0, 5), (1, 5), (2, 0)):
        start = "{}" if rows else None
        report(layout, progress_row(at=NOW + timedelta(seconds=second), inputRows=rows, startOffsets=start))
    assert [(row.batchId, row.inputRows) for row in batches(layout, 1)] == [(0, 5)]


def test_stable_names_read_the_active_generation_at_its_reported_version(layout: Layout) -> None:
    for offset, generation in enumerate((1, 2, 1)):
        event = {"userId": "a", "ts": NOW + timedelta(seconds=offset), "topic": "users", "partition": 0}
        store.append_rows(layout, "users", [event | {"generation": generation, "offset": offset}])
    assert stable_names.newest_rows(layout, "users_ui", 10) == []
    make_active(layout)
    report(layout, progress_row(usersVersion=2))
    assert [row["offset"] for row in stable_names.newest_rows(layout, "users_ui", 10)] == [0]
    report(layout, progress_row(usersVersion=3, at=NOW + timedelta(seconds=1)))
    assert [row["offset"] for row in stable_names.newest_rows(layout, "users_ui", 10)] == [0, 2]
    assert [row["offset"] for row in stable_names.newest_rows(layout, "users_ui", 1)] == [2]


def test_newest_rows_come_from_any_file(layout: Layout) -> None:
    for second in (3, 1, 2, 9, 4):
        moment = NOW + timedelta(seconds=second)
        store.append_rows(layout, "logs", [{"ts": moment, "level": "INFO", "msg": str(second)}])
    assert [row["msg"] for row in stable_names.newest_rows(layout, "orchestrator_logs", 3)] == ["3", "4", "9"]


def test_newest_joined_rows_are_found_when_a_side_is_missing(layout: Layout) -> None:
    """As asof writes them: rows with and without a user in one file."""
    rows = [
        {
            "generation": 1,
            "userId": "a",
            "accountTs": NOW + timedelta(seconds=n),
            "accountPartition": 0,
            "accountOffset": n,
        }
        | ({"userTs": NOW + timedelta(seconds=20)} if n == 0 else {})
        for n in range(20)
    ]
    store.append_rows(layout, "joined", rows)
    make_active(layout)
    report(layout, progress_row(joinedVersion=1))
    found = stable_names.newest_rows(layout, "final_ui", 10)
    assert [row["accountOffset"] for row in found] == [*range(11, 20), 0]


def test_unknown_name_says_which_there_are(layout: Layout) -> None:
    with pytest.raises(InputError, match="the stable names are users_ui"):
        stable_names.newest_rows(layout, "users", 1)


def test_log_lines_keep_their_generation_and_swap(layout: Layout) -> None:
    write_log(layout, "hello", level="WARNING", generation=3, swap_id="s")
    row = store.read_rows(layout, "logs")[0]
    assert (row["msg"], row["level"], row["generation"], row["swapId"]) == ("hello", "WARNING", 3, "s")
