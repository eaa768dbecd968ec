"""Which files hold the newest rows, by the statistics of the log alone: never too few, whatever the rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from switchyard.tables.commits import DataFile, files_since, oldest_needed

STAMPS = ("userTs", "accountTs")
START = datetime(2026, 1, 1, tzinfo=UTC)
moments = st.integers(0, 50).map(lambda seconds: START + timedelta(seconds=seconds))
rows = st.tuples(moments, st.none() | moments) | st.tuples(st.none(), moments)
Row = tuple[datetime | None, datetime | None]


def describe(number: int, held: list[Row]) -> DataFile:
    """A file as the log describes it."""
    columns = {stamp: [row[position] for row in held] for position, stamp in enumerate(STAMPS)}
    known = {stamp: [moment for moment in column if moment] for stamp, column in columns.items()}
    stamps = {stamp: (min(found), max(found)) for stamp, found in known.items() if found}
    whole = frozenset(stamp for stamp, column in columns.items() if None not in column)
    return DataFile(str(number), 1, len(held), stamps, whole)


def arrival(row: Row) -> datetime:
    return max(moment for moment in row if moment)


@given(st.lists(st.lists(rows, min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 10))
def test_the_newest_rows_are_in_the_files_that_are_read(held: list[list[Row]], limit: int) -> None:
    files = [describe(number, rows) for number, rows in enumerate(held)]
    oldest = oldest_needed(files, STAMPS, limit)
    assert oldest is not None
    all_rows = sorted((arrival(row) for rows in held for row in rows), reverse=True)
    read = [row for file in files_since(files, STAMPS, oldest) for row in held[int(file.path)]]
    seen = sorted((arrival(row) for row in read if arrival(row) >= oldest), reverse=True)
    assert seen[:limit] == all_rows[:limit]


def test_a_pair_with_an_old_event_does_not_make_all_files_needed() -> None:
    late = [START + timedelta(seconds=second) for second in range(10)]
    files = [describe(number, [(START, moment)]) for number, moment in enumerate(late)]
    oldest = oldest_needed(files, STAMPS, 2)
    assert oldest == late[8]
    assert [file.path for file in files_since(files, STAMPS, oldest)] == ["8", "9"]


def test_without_statistics_all_files_are_needed() -> None:
    files = [describe(0, [(START, START)]), DataFile("1", 1, 5)]
    assert oldest_needed(files, STAMPS, 1) is None
    assert files_since(files, STAMPS, None) == files
