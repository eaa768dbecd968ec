"""What readers take in memory does not grow with the tables: each reads more here than it may hold."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from switchyard.errors import InputError
from switchyard.health.accounting import _look_through, _scan_places
from switchyard.health.checks import WINDOW
from switchyard.health.gaps import find_gaps
from switchyard.layout import BIG_TABLES, Layout
from switchyard.offsets import Gap, to_json
from switchyard.records import JOIN_RULES, LEFT, RIGHT
from switchyard.swap.generations import keep_spec
from switchyard.swap.history import Ledger
from switchyard.tables import files, forgetting, store
from switchyard.tables.batch_totals import Chain, read_chain
from switchyard.tables.changes import Changes
from switchyard.tables.folders import Folder
from switchyard.tables.forgetting import REASON
from switchyard.tables.forgotten import add_mark
from switchyard.tables.joined_changes import ROW_SCHEMA, JoinedChanges
from switchyard.tables.joined_writer import commit_joined
from switchyard.tables.live import LiveTables
from switchyard.tables.long_text import MOST_CHARACTERS
from switchyard.tables.pieces import scan_file
from switchyard.tables.progress import newest_with_rate, recent_rows, report
from switchyard.tables.queries import parse_query
from switchyard.tables.reader import Reader
from switchyard.tables.schemas import PARTITIONED, SCHEMAS, TIMESTAMP
from switchyard.tables.stable_names import newest_rows
from switchyard.tables.writer import TableWriter, claim_attempt
from switchyard.upkeep.forget import DONE, carry_out_in_ended, find_rows
from switchyard.upkeep.referenced_versions import read_referenced_versions
from switchyard.upkeep.small_tables import merge_small
from tests.histories import NOW, make_active, progress_row
from tests.memory import measure
from tests.specs import make_spec

ROWS = 3_000_000
PEOPLE = 1_000
START = datetime(2026, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of a process can be read on Linux only"
)


def add_file(layout: Layout, name: str, generation: int | None, columns: dict[str, Any], **options: Any) -> None:
    """One file with one row group, as Spark makes it of a big batch."""
    count = len(next(iter(columns.values())))
    fields = [field for field in SCHEMAS[name] if field.name != "generation" or name not in PARTITIONED]
    filled = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in fields]
    store.open_table(layout, name)
    folder = Folder.at(layout.table(name))
    path = f"part-{name}-{generation}-{options.pop('number', 0)}.parquet"
    if generation is not None:
        path = f"{files.generation_folder(generation)}/{path}"
        folder.make(files.generation_folder(generation))
    pq.write_table(pa.table(filled, schema=pa.schema(fields)), folder.full(path), row_group_size=count, **options)
    added = files.describe_file(folder, generation, path)
    store.transact(layout, name, lambda _: store.Change(added=[added]))


def repeat_texts(prefix: str, numbers: Any) -> pa.Array:
    return pa.array([f"{prefix}{number}" for number in range(PEOPLE)]).take(pa.array(numbers))


def make_moments(numbers: Any) -> pa.Array:
    return pa.array(numbers.astype(np.int64) * 1000 + int(START.timestamp()) * 1_000_000, TIMESTAMP)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """An ended generation with three million users, a third of them one person's, all in one file; also in `joined`."""
    layout = Layout(str(tmp_path_factory.mktemp("big")))
    numbers = np.arange(ROWS)
    person = np.where(numbers % 3 == 0, 0, numbers % PEOPLE)
    people = {"userId": repeat_texts("user-", person), "name": repeat_texts("Name ", person), "age": person}
    place = {"ts": make_moments(numbers), "partition": np.zeros(ROWS, np.int32), "offset": numbers}
    add_file(layout, "users", 1, people | place | {"topic": pa.repeat("users", ROWS)}, use_dictionary=["topic"])
    joined = people | {f"user{name.capitalize()}": column for name, column in place.items()}
    add_file(layout, "joined", 1, joined, use_dictionary=False)
    for name in BIG_TABLES:
        store.open_table(layout, name)
    make_active(layout)
    keep_spec(layout, make_spec(joinType="left"))
    report_all(layout)
    return layout


def report_all(layout: Layout) -> None:
    versions = {f"{name}Version": int(store.open_table(layout, name).version()) for name in BIG_TABLES}
    ends = to_json({"users": {0: ROWS}, "accounts": {0: 0}})
    report(layout, progress_row(at=NOW, endOffsets=ends, startOffsets=None, **versions))


def test_the_newest_rows_of_millions(big: Layout) -> None:
    rows, taken = measure(tail, big, "final_ui", 100)
    assert [row["userOffset"] for row in rows] == list(range(ROWS - 100, ROWS))
    assert taken < 200


def tail(*asked: Any) -> Any:
    return newest_rows(*asked)


def test_changes_beside_a_generation_that_reads_its_history(layout: Layout) -> None:
    for name in BIG_TABLES:
        store.open_table(layout, name)
    make_active(layout)
    report_all(layout)
    position = Changes(layout, LiveTables(layout)).now()
    numbers = np.arange(ROWS)
    add_file(layout, "joined", 2, {"userId": repeat_texts("user-", numbers % PEOPLE), "userOffset": numbers})
    add_file(layout, "joined", 1, {"userId": ["mine"], "userOffset": [7]})
    versions = {f"{name}Version": int(store.open_table(layout, name).version()) for name in BIG_TABLES}
    report(layout, progress_row(at=NOW + timedelta(seconds=1), **versions))
    offsets, taken = measure(read_changes, layout, position)
    assert offsets == [7]
    assert taken < 200


def read_changes(layout: Layout, position: dict[str, int]) -> list[int]:
    events, _ = Changes(layout, LiveTables(layout)).after(position, ["final_ui"])
    return [row["userOffset"] for event in events if event.kind == "rows" for row in event.data["rows"]]


def test_a_page_of_millions(big: Layout) -> None:
    (total, offsets), taken = measure(read_page, big, "final_ui")
    assert (total, offsets[0]) == (ROWS, ROWS - 1)
    assert taken < 500


def read_page(layout: Layout, name: str) -> tuple[int, list[int]]:
    page = Reader(LiveTables(layout)).page(name, parse_query("joined"))
    return page.total, [row["userOffset"] for row in page.rows]


def test_the_places_of_millions_of_records(big: Layout) -> None:
    gaps, taken = measure(find_places, big)
    assert gaps == [Gap("users", 0, ROWS, ROWS + 5), Gap("users", 1, 0, 1)]
    assert taken < 200


def find_places(layout: Layout) -> list[Gap]:
    table = store.open_table(layout, "users")
    return list(find_gaps({}, {"users": {0: ROWS + 5, 1: 1}}, lambda spans: _scan_places([table], 1, spans)))


def test_the_rows_of_a_person_are_counted(big: Layout) -> None:
    found, taken = measure(count_person, big)
    assert found == {"users": {1: ROWS // 3 + ROWS * 2 // 3 // PEOPLE}, "joined": {1: found["users"][1]}}
    assert taken < 120


def count_person(layout: Layout) -> dict[str, dict[int, int]]:
    found = find_rows(layout, "user-0", lambda line: None)
    return {name: dict(rows) for name, rows in found.items() if rows}


def test_a_person_with_a_million_rows_is_forgotten(big: Layout, layout: Layout) -> None:
    shutil.copytree(big.root, layout.root)
    lost = count_person(layout)["users"][1]
    add_mark(layout, "user-0", {"users": {0: ROWS - 10}, "accounts": {0: 0}}, {}, "test")
    done, taken = measure(carry_out_in_ended, layout, 1)
    assert done == DONE
    assert taken < 400
    kept = count_person(layout)
    assert kept["users"] == kept["joined"]
    assert kept["users"][1] in (3, 4)
    places = store.read_arrow(layout, "rejects", generation=1, columns=["offset", "value", "reason"])
    assert places.num_rows == lost - kept["users"][1]
    assert (places["value"].null_count, places["reason"].unique().to_pylist()) == (places.num_rows, [REASON])
    for name in ("users", "joined"):
        assert store.read_arrow(layout, name, generation=1, columns=["userId"]).num_rows == ROWS - places.num_rows


@pytest.mark.parametrize("join_type", ["left", "natural"])
def test_a_person_who_comes_back_with_many_long_events_is_forgotten(layout: Layout, join_type: str) -> None:
    """What a backfill past the mark finds: nearly all of the person's events are later ones."""
    count, numbers = 40_000, np.arange(40_000)
    place = {"ts": make_moments(numbers), "partition": np.zeros(count, np.int32), "offset": numbers}
    person = {"userId": ["a"] * count, "name": pa.repeat("x" * 10_000, count), "topic": ["users"] * count}
    add_file(layout, "users", 1, person | place)
    for name in BIG_TABLES:
        store.open_table(layout, name)
    make_active(layout)
    keep_spec(layout, make_spec(joinType=join_type))
    report_all(layout)
    add_mark(layout, "a", {"users": {0: 10}, "accounts": {0: 0}}, {}, "test")
    done, taken = measure(carry_out_in_ended, layout, 1)
    assert done == DONE
    assert taken < 400
    for name, column in (("users", "offset"), ("joined", "userOffset")):
        kept = store.read_arrow(layout, name, generation=1, columns=[column])[column].to_pylist()
        assert sorted(kept) == list(range(10, count))


def test_many_events_of_one_person_on_both_sides() -> None:
    count, taken = measure(join_many, 2_000)
    assert count == 2_000 * 2_000
    assert taken < 250


def join_many(count: int) -> int:
    users, accounts = (
        pa.Table.from_pylist(
            [{"userId": "a", "ts": START, "topic": "t", "partition": 0, "offset": n} for n in range(count)],
            schema=pa.schema([field for field in schema if field.name != "generation"]),
        )
        for schema in (SCHEMAS["users"], SCHEMAS["accounts"])
    )
    return sum(
        rows.num_rows
        for rows in forgetting.join_events(
            {LEFT: lambda: [users], RIGHT: lambda: [accounts]}, make_spec(joinType="inner")
        )
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A generation with six hundred rejects of half a megabyte in one file."""
    layout = Layout(str(tmp_path_factory.mktemp("wide")))
    values = [f'{{"userId": "{number % 2}", "age": "' + f"{number:05}" * 100_000 for number in range(600)]
    numbers = np.arange(600)
    place = {"partition": np.zeros(600, np.int32), "offset": numbers, "ts": make_moments(numbers)}
    columns = {"topic": ["users"] * 600, "value": values, "reason": ["no JSON"] * 600}
    add_file(layout, "rejects", 1, columns | place, use_dictionary=False, write_batch_size=1)
    for name in BIG_TABLES:
        store.open_table(layout, name)
    make_active(layout)
    report_all(layout)
    return layout


def test_a_page_of_long_values_shows_their_beginnings(wide: Layout) -> None:
    rows, taken = measure(read_rejects, wide, "")
    assert [row["offset"] for row in rows] == list(range(599, 499, -1))
    assert rows[0]["value"].startswith('{"userId": "1", "age": "00599')
    assert rows[0]["value"].endswith(f"… ({500_000 + 24} characters)")
    assert len(rows[0]["value"]) < MOST_CHARACTERS + 50
    assert taken < 450


def test_long_values_are_searched_whole(wide: Layout) -> None:
    rows, taken = measure(read_rejects, wide, "0059900599")
    assert [row["offset"] for row in rows] == [599]
    assert taken < 450


def read_rejects(layout: Layout, quick: str) -> list[dict[str, Any]]:
    return Reader(LiveTables(layout)).page("rejects_ui", parse_query("rejects", quick=quick)).rows


def test_tail_shows_as_many_long_rows_as_fit_and_says_so(wide: Layout) -> None:
    (rows, said), taken = measure(tail_rejects, wide)
    assert rows == list(range(600 - len(rows), 600))
    assert 30 <= len(rows) <= 35
    assert said == [
        f"only the newest {len(rows)} rows: with {600 - len(rows)} more they are over 16 MiB; read the table to see all"
    ]
    assert taken < 450


def tail_rejects(layout: Layout) -> tuple[list[int], list[str]]:
    said: list[str] = []
    rows = newest_rows(layout, "rejects_ui", 600, said.append)
    return [row["offset"] for row in rows], said


def test_more_rows_than_tail_can_show_are_refused(layout: Layout) -> None:
    with pytest.raises(InputError, match="ask for 100000 at most"):
        newest_rows(layout, "final_ui", 10_000_000)


def test_a_repeated_long_value_is_not_decoded_for_all_its_rows(layout: Layout) -> None:
    """It is once in the file, as a dictionary has it, and in memory as often as it is read."""
    columns = {"topic": ["users"] * 1_000, "value": pa.repeat("x" * 400_000, 1_000), "offset": np.arange(1_000)}
    add_file(layout, "rejects", 1, columns)
    count, taken = measure(scan_rejects, layout)
    assert count == 1_000
    assert taken < 300


def scan_rejects(layout: Layout) -> int:
    return sum(
        rows.num_rows for rows in scan_file(Folder.at(layout.table("rejects")), FIRST_REJECTS, SCHEMAS["rejects"])
    )


FIRST_REJECTS = "generation=1/part-rejects-1-0.parquet"


def test_a_day_of_batches_of_many_partitions_is_added_up(layout: Layout) -> None:
    count = 40_000
    positions = [to_json({"users": dict.fromkeys(range(100), n)}) for n in range(count + 1)]
    numbers = np.arange(count)
    columns = {"attempt": np.ones(count, np.int64), "batchId": numbers, "at": make_moments(numbers)}
    columns |= {"inputRows": np.full(count, 100), "tombstones": np.ones(count, np.int64)}
    columns |= {"startOffsets": positions[:-1], "endOffsets": positions[1:]}
    add_file(layout, "progress", 1, columns, use_dictionary=False)
    chain, taken = measure(read_chain, layout, 1, count - 2)
    end = {"users": dict.fromkeys(range(100), count - 1)}
    assert chain == Chain(count - 1, 100 * (count - 1), count - 1, 0, {"users": dict.fromkeys(range(100), 0)}, end)
    assert taken < 240


def test_thousands_of_long_control_messages_are_merged_and_looked_through(layout: Layout) -> None:
    for number in range(8):
        offsets = np.arange(500) + 500 * number
        values = [f'{{"id": "{offset}", "x": "' + f"{offset:05}" * 13_000 for offset in offsets]
        place = {"topic": ["control"] * 500, "partition": np.zeros(500, np.int32), "offset": offsets}
        columns = place | {"ts": make_moments(offsets), "value": values}
        add_file(layout, "control_raw", None, columns, number=number, use_dictionary=False, write_batch_size=16)
    done, taken = measure(merge_small, layout, "control_raw")
    assert (done.files_before, done.rows_removed) == (8, 0)
    assert taken < 450
    kept, taken = measure(look_through, layout)
    assert (kept.count, kept.unsettled, kept.firsts) == (4_000, 4_000, {0: 0})
    assert taken < 300
    offsets = store.read_arrow(layout, "control_raw", columns=["offset"])["offset"].to_pylist()
    assert sorted(offsets) == list(range(4_000))


def test_a_row_among_many_with_one_long_text_is_revised(layout: Layout) -> None:
    """In the file the text is once."""
    rows, numbers = 8_000, np.arange(8_000)
    place = {"userTs": make_moments(numbers), "userPartition": np.zeros(rows, np.int32), "userOffset": numbers}
    add_file(layout, "joined", 1, place | {"userId": ["a"] * rows, "name": pa.repeat("x" * 100_000, rows)})
    kept, taken = measure(revise_one, layout)
    assert kept == [*((n, None) for n in range(rows) if n != 7), (7, 3)]
    assert taken < 700


def revise_one(layout: Layout) -> list[tuple[int, int]]:
    row = {"userTs": START, "userPartition": 0, "userOffset": 7}
    row |= {"accountTs": START, "accountPartition": 0, "accountOffset": 3}
    revised = pa.Table.from_pylist([row], schema=ROW_SCHEMA)
    changed = JoinedChanges(ROW_SCHEMA.empty_table(), revised, JOIN_RULES["natural"])
    commit_joined(TableWriter(layout, "joined", 1, claim_attempt(layout, 1)), 0, changed)
    found = store.read_arrow(layout, "joined", generation=1, columns=["userOffset", "accountOffset"])
    return sorted(zip(*found.to_pydict().values(), strict=True), key=lambda place: (place[1] or 0, place[0]))


def test_many_pairs_of_long_texts(layout: Layout) -> None:
    count, taken = measure(join_long, 40)
    assert count == 40 * 40
    assert taken < 300


def join_long(count: int) -> int:
    users, accounts = (
        pa.Table.from_pylist(
            [{"userId": "a", "ts": START, "topic": "t", "partition": 0, "offset": n} | texts for n in range(count)],
            schema=pa.schema([field for field in schema if field.name != "generation"]),
        )
        for schema, texts in ((SCHEMAS["users"], {"name": "x" * 500_000}), (SCHEMAS["accounts"], {}))
    )
    return sum(
        rows.num_rows
        for rows in forgetting.join_events(
            {LEFT: lambda: [users], RIGHT: lambda: [accounts]}, make_spec(joinType="inner")
        )
    )


def test_the_newest_report_and_the_named_versions_of_hours_in_one_file(layout: Layout) -> None:
    count = 200_000
    numbers, one = np.arange(count), np.ones(count, np.int64)
    columns: dict[str, Any] = {"attempt": one, "batchId": numbers, "at": make_moments(numbers * 100), "inputRows": one}
    columns |= {f"{name}Version": numbers % 7 for name in BIG_TABLES}
    columns |= {"endOffsets": pa.repeat(to_json({"users": dict.fromkeys(range(50), 7)}), count)}
    add_file(layout, "progress", 1, columns)
    (newest, rate, recent), taken = measure(read_newest_reports, layout)
    assert (newest, rate, recent) == (count - 1, 10.1, 1_801)
    assert taken < 250
    referenced, taken = measure(read_referenced_versions, layout, [1], START)
    assert referenced == {name: set(range(7)) for name in BIG_TABLES}
    assert taken < 200


def read_newest_reports(layout: Layout) -> tuple[int, float, int]:
    newest, rate = newest_with_rate(layout, 1)
    return newest.batchId if newest else -1, rate, len(recent_rows(layout, 1, WINDOW))


def look_through(layout: Layout) -> Any:
    return _look_through(store.open_table(layout, "control_raw"), "control", Ledger())
