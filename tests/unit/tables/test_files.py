"""Written files: described as their footers say, and compressed where that pays."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from switchyard.layout import Layout
from switchyard.tables import files
from switchyard.tables.folders import Folder


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


@pytest.mark.parametrize(
    ("accounts", "compression"), [([None, None], "UNCOMPRESSED"), ([None, 1], "SNAPPY"), ([1, 2], "SNAPPY")]
)
def test_only_rows_without_an_account_are_not_compressed(
    layout: Layout, accounts: list[int | None], compression: str
) -> None:
    folder = Folder.at(layout.table("joined"))
    rows = pa.table({"userId": ["a", "b"], "accountOffset": pa.array(accounts, pa.int64())})
    written = files.write_file(folder, 1, rows)
    group = pq.ParquetFile(folder.full(written.path)).metadata.row_group(0)
    assert {group.column(number).compression for number in range(2)} == {compression}
    assert folder.read(written.path) == rows
