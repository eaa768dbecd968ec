"""What is read piece by piece is what is read at once: newest rows, sums of batches, joins in parts, cut text."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.layout import Layout
from switchyard.offsets import from_json
from switchyard.records import LEFT, RIGHT
from switchyard.tables import forgetting, long_text, store
from switchyard.tables.batch_totals import Chain, read_chain
from switchyard.tables.newest_rows import Places
from switchyard.tables.pieces import gather
from switchyard.tables.progress import batches
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.stable_names import newest_rows
from tests import model
from tests.properties.test_progress_summary import Row, reports
from tests.specs import make_spec

START = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6), st.integers(1, 12))
def test_the_newest_of_all_pieces_are_kept(pieces: list[list[int]], limit: int) -> None:
    none = np.empty(0, np.int64)
    places = Places(none, none, none)
    for file, arrived in enumerate(pieces):
        places = places.merge(np.array(arrived, np.int64), file, 10, limit)
    simple = sorted((at, file, row + 10) for file, piece in enumerate(pieces) for row, at in enumerate(piece))[-limit:]
    assert list(zip(places.arrived, places.file, places.row, strict=True)) == simple


@given(st.lists(st.integers(0, 7), max_size=20), st.integers(1, 10), st.integers(1, 80))
def test_gathered_pieces_hold_the_same_rows_and_are_bounded(sizes: list[int], most_rows: int, most_bytes: int) -> None:
    numbers = iter(range(1000))
    pieces = [pa.table({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes]
    gathered = list(gather(pieces, most_rows, most_bytes))
    assert [n for piece in gathered for n in piece["n"].to_pylist()] == list(range(sum(sizes)))
    assert all(0 < piece.num_rows < most_rows + 7 for piece in gathered)
    assert all(piece.nbytes < most_bytes + 7 * 8 for piece in gathered)
    assert all(piece.num_rows >= most_rows or piece.nbytes >= most_bytes for piece in gathered[:-1])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=4), st.integers(1, 12))
def test_the_newest_rows_of_a_table(files: list[list[int]], limit: int) -> None:
    """As many as are wanted, newest last; of those that came together any."""
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        for number, seconds in enumerate(files):
            lines = [
                {"ts": START + timedelta(seconds=n), "msg": f"{number}-{place}"} for place, n in enumerate(seconds)
            ]
            store.append_rows(layout, "logs", lines)
        rows = newest_rows(layout, "orchestrator_logs", limit)
        everything = store.read_rows(layout, "logs")
    times = sorted(row["ts"] for row in everything)
    assert [row["ts"] for row in rows] == times[-limit:]
    assert {row["msg"] for row in rows} <= {row["msg"] for row in everything}
    assert len({row["msg"] for row in rows}) == len(rows)


@settings(max_examples=20, deadline=None)
@given(reports(), st.integers(0, 12))
def test_batches_are_added_up_as_one_by_one(rows: list[Row], up_to: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        for part in (rows[::2], rows[1::2]):
            if part:
                store.append_rows(layout, "progress", [{"generation": 1, **row} for row in part])
        chain = read_chain(layout, 1, up_to)
        seen = [row for row in batches(layout, 1) if row.batchId <= up_to]
    breaks = sum(before.endOffsets != row.startOffsets for before, row in pairwise(seen))
    sums = sum(row.inputRows for row in seen), sum(row.tombstones for row in seen)
    edges = (from_json(seen[0].startOffsets), from_json(seen[-1].endOffsets)) if seen else (None, None)
    assert chain == Chain(len(seen), *sums, breaks, *edges)


def events(schema: pa.Schema) -> st.SearchStrategy[pa.Table]:
    fields = [field for field in schema if field.name != "generation"]
    few = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=8)
    # One person with many events: their pairs alone are many parts.
    crowd = st.lists(st.tuples(st.just("a"), st.integers(0, 5)), min_size=10, max_size=20)

    def build(drawn: list[tuple[str, int]]) -> pa.Table:
        rows = [
            {"userId": person, "ts": START + timedelta(seconds=at), "topic": "t", "partition": 0, "offset": number}
            for number, (person, at) in enumerate(drawn)
        ]
        return pa.Table.from_pylist(rows, schema=pa.schema(fields))

    return (few | crowd).map(build)


@pytest.mark.parametrize("join_type", sorted(model.JOINS))
@settings(max_examples=25, deadline=None)
@given(
    users=events(SCHEMAS["users"]),
    accounts=events(SCHEMAS["accounts"]),
    most=st.integers(1, 20),
    rows=st.integers(1, 8),
    size=st.integers(1, 2_000),
)
def test_a_join_in_parts_is_the_join(
    join_type: str, users: pa.Table, accounts: pa.Table, most: int, rows: int, size: int
) -> None:
    def join(most_rows: int) -> Counter[str]:
        events = {LEFT: partial(cut, users, most_rows), RIGHT: partial(cut, accounts, most_rows)}
        parts = forgetting.join_events(events, spec)
        return Counter(str(row) for part in parts for row in part.to_pylist())

    spec = make_spec(joinType=join_type)
    with pytest.MonkeyPatch.context() as patch:
        whole = join(100)
        patch.setattr(forgetting, "MOST_PAIRS", most)
        patch.setattr(forgetting, "PIECE_ROWS", rows)
        patch.setattr(forgetting, "PAIR_BYTES", size)
        assert join(rows) == whole


def cut(rows: pa.Table, most_rows: int) -> Iterator[pa.Table]:
    return (rows.slice(first, most_rows) for first in range(0, rows.num_rows, most_rows))


@settings(deadline=None)
@given(st.lists(st.none() | st.text(max_size=12), min_size=1, max_size=6))
def test_text_is_cut_alike_in_arrow_and_in_sql(texts: list[str | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_text, "MOST_CHARACTERS", 5)
        rows = pa.table({"msg": pa.array(texts, pa.string())})
        expected = [
            text if text is None or len(text) <= 5 else f"{text[:5]}… ({len(text)} characters)" for text in texts
        ]
        assert long_text.cut_rows(rows)["msg"].to_pylist() == expected
        columns = long_text.cut_in_sql("logs", ["msg"])
        assert duckdb.sql(f"select {columns} from rows").to_arrow_table()["msg"].to_pylist() == expected
        assert [long_text.is_cut(text or "") for text in expected] == [len(text or "") > 5 for text in texts]


def test_columns_that_are_no_text_are_left_alone() -> None:
    assert long_text.cut_in_sql("progress", ["batchId", "__file"]) == '"batchId", "__file"'
    assert set(SCHEMAS["progress"].names) > {"batchId"}
