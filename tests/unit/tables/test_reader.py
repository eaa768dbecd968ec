"""Pages of stable names over real Delta tables, compared with the same rows sorted and filtered in Python."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from switchyard.cli.main import main
from switchyard.errors import InputError
from switchyard.layout import BIG_TABLES, Layout
from switchyard.tables import files, store
from switchyard.tables.commits import FollowedTable
from switchyard.tables.folders import Folder
from switchyard.tables.live import LiveTables
from switchyard.tables.progress import Progress, report
from switchyard.tables.queries import parse_query
from switchyard.tables.reader import Reader
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.stable_names import newest_rows
from switchyard.web.access import mask_row
from switchyard.wording import shorten_emails

START = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def joined_rows(numbers: range, generation: int = 1) -> list[Row]:
    return [
        {
            "generation": generation,
            "userId": f"u{number % 7}",
            "name": f"Name {number}" if number % 5 else None,
            "email": f"person{number}@example.org",
            "age": number % 13,
            "accountType": ["gold", "Silver", None][number % 3],
            "balance": None if number % 3 == 2 else float(number * 7 % 50),
            "userTs": START + timedelta(seconds=number),
            "userPartition": number % 2,
            "userOffset": number,
            "accountTs": None if number % 3 == 2 else START + timedelta(seconds=number, milliseconds=500),
            "accountPartition": None if number % 3 == 2 else 0,
            "accountOffset": None if number % 3 == 2 else number,
        }
        for number in numbers
    ]


def add_joined(layout: Layout, rows: list[Row], removed: list[str] | None = None) -> str:
    """One commit of one file, as a driver makes it; returns the path of the file."""
    generation = rows[0]["generation"]
    table = pa.Table.from_pylist(rows, schema=SCHEMAS["joined"]).drop_columns(["generation"])
    added = files.write_file(Folder.at(layout.table("joined")), generation, table)
    gone = [files.remove_file(generation, path, 1) for path in removed or []]
    store.transact(layout, "joined", lambda _: store.Change(added=[added], removed=gone))
    return str(added.path)


def report_progress(layout: Layout, generation: int = 1, seconds: int = 0) -> None:
    """Says that the newest versions belong together."""
    versions = {name: store.open_table(layout, name).version() for name in BIG_TABLES}
    at = START + timedelta(days=1, seconds=seconds)
    report(layout, Progress(generation, 1, 1, at, 1, 1.0, 10, 0, *(versions[n] for n in BIG_TABLES), 0, 0, None, None))


def set_status(layout: Layout, generation: int) -> None:
    row = {
        "generation": generation,
        "usersTopic": "users",
        "accountsTopic": "accounts",
        "joinType": "left",
        "lastApplied": START,
        "state": "ACTIVE",
        "epoch": generation,
    }
    store.transact(layout, "status", lambda _: store.Change(rows=[row], mode="overwrite"))


@pytest.fixture
def reader(layout: Layout) -> Reader:
    """Thirty rows in three files of generation 1."""
    for name in BIG_TABLES:
        store.create_table(layout, name)
    for first in (0, 10, 20):
        add_joined(layout, joined_rows(range(first, first + 10)))
    report_progress(layout)
    set_status(layout, 1)
    return Reader(LiveTables(layout))


def offsets(reader: Reader, **asked: Any) -> list[int]:
    return [row["userOffset"] for row in reader.page("final_ui", parse_query("joined", **asked)).rows]


def test_the_first_page_has_the_newest_rows_whole(reader: Reader, layout: Layout) -> None:
    page = reader.page("final_ui", parse_query("joined", limit=7))
    assert page.rows == list(reversed(newest_rows(layout, "final_ui", 7)))
    assert page.rows == list(reversed(joined_rows(range(23, 30))))
    assert (page.total, page.generation) == (30, 1)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"filters": ["age:ge:11"]}, lambda row: row["age"] >= 11),
        ({"filters": ["name:contains:NAME 1"]}, lambda row: (row["name"] or "").startswith("Name 1")),
        ({"filters": ["name:notContains:2"]}, lambda row: "2" not in (row["name"] or "")),
        ({"filters": ["name:blank:"]}, lambda row: row["name"] is None),
        ({"filters": ["balance:notBlank", "balance:lt:20.5"]}, lambda row: row["balance"] in map(float, range(21))),
        ({"filters": ["accountType:eq:gold"]}, lambda row: row["accountType"] == "gold"),
        ({"filters": ["userTs:gt:2026-01-01T00:00:25Z"]}, lambda row: row["userOffset"] > 25),
        ({"filters": ["email:endsWith:9@example.org"]}, lambda row: row["userOffset"] % 10 == 9),
        ({"quick": "silver u3"}, lambda row: row["accountType"] == "Silver" and row["userId"] == "u3"),
        ({"quick": "%"}, lambda row: False),
    ],
)
def test_filters_find_what_they_say(reader: Reader, asked: dict[str, Any], expected: Any) -> None:
    wanted = [row["userOffset"] for row in reversed(joined_rows(range(30))) if expected(row)]
    assert offsets(reader, **asked) == wanted
    assert reader.page("final_ui", parse_query("joined", **asked)).total == len(wanted)


@pytest.mark.parametrize("sort", ["balance", "-balance", "name", "-accountType,age", "userId"])
def test_pages_of_a_sort_are_the_sorted_rows_cut_in_pieces(reader: Reader, sort: str) -> None:
    wanted = list(reversed(joined_rows(range(30))))
    for part in reversed(sort.split(",")):
        column, down = part.removeprefix("-"), part.startswith("-")
        present = [row for row in wanted if row[column] is not None]
        absent = [row for row in wanted if row[column] is None]
        wanted = sorted(present, key=lambda row: row[column], reverse=down) + absent
    pages = [row for offset in range(0, 30, 8) for row in offsets(reader, sort=sort, offset=offset, limit=8)]
    assert pages == [row["userOffset"] for row in wanted]


def test_a_new_version_is_seen_only_when_progress_names_it(reader: Reader, layout: Layout) -> None:
    asked = [{}, {"sort": "-balance"}, {"quick": "gold"}]
    before = [offsets(reader, **each) for each in asked]
    add_joined(layout, joined_rows(range(30, 40)))
    assert [offsets(reader, **each) for each in asked] == before
    report_progress(layout, seconds=1)
    fresh = Reader(LiveTables(layout))
    assert [offsets(reader, **each) for each in asked] == [offsets(fresh, **each) for each in asked]
    assert offsets(reader, limit=3) == [39, 38, 37]


def test_a_later_version_reads_only_its_new_files(reader: Reader, layout: Layout) -> None:
    assert len(offsets(reader, sort="-balance")) == 30
    folder = Folder.at(layout.table("joined"))
    for path in folder.list_parquet("generation=1"):
        folder.delete_file(path)
    add_joined(layout, joined_rows(range(30, 40)))
    report_progress(layout, seconds=1)
    assert len(offsets(reader, sort="-balance")) == 40


def test_rows_that_were_revised_or_moved_are_shown_once(reader: Reader, layout: Layout) -> None:
    assert len(offsets(reader, sort="balance")) == 30
    path = add_joined(layout, joined_rows(range(30, 35)))
    report_progress(layout, seconds=1)
    assert len(offsets(reader, sort="balance")) == 35
    add_joined(layout, [row | {"balance": 1000.0} for row in joined_rows(range(30, 35))], removed=[path])
    report_progress(layout, seconds=2)
    assert offsets(reader, sort="-balance", limit=5) == [34, 33, 32, 31, 30]
    assert reader.page("final_ui", parse_query("joined", sort="balance")).total == 35
    store.open_table(layout, "joined").optimize.compact()
    report_progress(layout, seconds=3)
    assert sorted(offsets(reader, sort="balance")) == list(range(35))


def test_after_a_flip_the_same_name_reads_the_other_generation(reader: Reader, layout: Layout) -> None:
    assert len(offsets(reader)) == 30
    add_joined(layout, joined_rows(range(100, 104), generation=2))
    report_progress(layout, generation=2)
    assert len(offsets(reader)) == 30
    set_status(layout, 2)
    page = reader.page("final_ui", parse_query("joined"))
    assert page.rows == list(reversed(joined_rows(range(100, 104), generation=2)))
    assert (page.total, page.generation) == (4, 2)


def test_small_tables_are_followed_too(reader: Reader, layout: Layout) -> None:
    def messages(**asked: Any) -> list[str]:
        return [row["msg"] for row in reader.page("orchestrator_logs", parse_query("logs", **asked)).rows]

    assert messages() == []
    for number in range(3):
        row = {"ts": START + timedelta(seconds=number), "level": "INFO", "msg": f"line {number}"}
        store.append_rows(layout, "logs", [row])
        assert messages() == [f"line {each}" for each in reversed(range(number + 1))]
    assert messages(filters=["msg:endsWith:1"]) == ["line 1"]
    assert reader.page("orchestrator_status", parse_query("status")).rows[0]["generation"] == 1


def test_before_anything_is_active_every_name_is_empty(layout: Layout) -> None:
    reader = Reader(LiveTables(layout))
    for name, table in (("final_ui", "joined"), ("orchestrator_logs", "logs"), ("audits", "audits")):
        page = reader.page(name, parse_query(table))
        assert (page.rows, page.total) == ([], 0)


def test_a_log_that_was_cleaned_up_is_opened_again(layout: Layout) -> None:
    followed = FollowedTable(layout, "logs")
    store.append_rows(layout, "logs", [{"ts": START, "msg": "one"}])
    assert followed.advance() is None
    store.append_rows(layout, "logs", [{"ts": START, "msg": "two"}])
    store.append_rows(layout, "logs", [{"ts": START, "msg": "three"}])
    DeltaTable(layout.table("logs")).create_checkpoint()
    folder = Folder.at(layout.table("logs"))
    for version in range(3):
        folder.delete_file(f"_delta_log/{version:020}.json")
    assert followed.advance() is None
    assert (followed.version, len(followed.files)) == (3, 3)
    assert followed.advance() == []


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"limit": 0}, "a page has 1 to 1000 rows"),
        ({"limit": 1001}, "a page has 1 to 1000 rows"),
        ({"offset": 9_901, "limit": 100}, "lies within the first 10000"),
        ({"offset": -1}, "a page has"),
        ({"filters": ["nothing:eq:1"]}, "there is no column 'nothing'"),
        ({"filters": ['age" or 1=1 --:eq:1']}, "there is no column"),
        ({"filters": ["age:like:1"]}, "the filter operator 'like' is not known"),
        ({"filters": ["age:contains:1"]}, "age is not text"),
        ({"filters": ["age:eq:one"]}, "the filter on age needs a number"),
        ({"filters": [f"age:eq:{2**63}"]}, "the filter on age needs a number"),
        ({"filters": ["balance:eq:nan"]}, "the filter on balance needs a number"),
        ({"filters": ["userTs:eq:yesterday"]}, "the filter on userTs needs an ISO timestamp"),
        ({"filters": ["age:eq:1"] * 21}, "more than 20 filters"),
        ({"filters": ["name:eq:" + "x" * 201]}, "more than 200 characters"),
        ({"quick": "x" * 201}, "more than 200 characters"),
        ({"sort": "age;drop"}, "there is no column"),
        ({"sort": "-email", "sees_addresses": False}, "e-mail addresses that you may not see"),
        ({"filters": ["email:eq:a"], "sees_addresses": False}, "e-mail addresses that you may not see"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refused:
        parse_query("joined", **asked)
    assert "\n" not in str(refused.value)


def test_who_may_not_see_addresses_cannot_find_them_by_quick_text(reader: Reader) -> None:
    assert offsets(reader, quick="person7@") == [7]
    assert offsets(reader, quick="person7@", sees_addresses=False) == []


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("ada.turing@example.org", "a…@…"),
        ('{"email": "ada@example.org", "age": "x"}', '{"email": "a…@…", "age": "x"}'),
        ('{"email": "ada\\u0040example.org"}', '{"email": "a…@…"}'),
        ("two a@b.c and d@e.f", "two a…@… and d…@…"),
        ("none", "none"),
        ("", ""),
    ],
)
def test_addresses_are_masked_wherever_they_stand(text: str, masked: str) -> None:
    assert shorten_emails(text) == masked


def test_a_value_in_base64_is_hidden_whole() -> None:
    row = {"value": "YWRhQGV4YW1wbGUub3Jn", "reason": "the value is not UTF-8 text (it is kept here as base64)", "n": 1}
    assert mask_row(row) == row | {"value": "(hidden)"}


def test_the_command_line_asks_in_the_same_way(
    reader: Reader, layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_ROOT", layout.root)
    asked = ["tail", "final_ui", "--filter", "accountType:eq:gold", "--sort=-balance", "--limit", "3", "--json"]
    assert main(asked) == 0
    shown = [row["userOffset"] for row in json.loads(capsys.readouterr().out)]
    assert shown == offsets(reader, filters=["accountType:eq:gold"], sort="-balance", limit=3)
    assert main([*asked, "--follow"]) == 2
