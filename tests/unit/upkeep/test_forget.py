"""The command `forget` without a broker: what it counts, what it does to generations that have ended, what it waits
for, and what a mark matches."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from switchyard.cli.main import main
from switchyard.errors import FencedError, InputError
from switchyard.layout import Layout
from switchyard.policies import Rules
from switchyard.records import LEFT
from switchyard.settings import Settings
from switchyard.stream.progress_report import position_of
from switchyard.stream.runner import BatchRunner
from switchyard.swap import transitions
from switchyard.swap.generations import keep_spec
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import joined_changes, store
from switchyard.tables.forgetting import REASON
from switchyard.tables.forgotten import Marks, add_mark, hash_user, owner_of, read_marks
from switchyard.tables.joined_changes import BATCH_SCHEMA
from switchyard.tables.progress import Progress, newest_progress, report
from switchyard.tables.sink import BatchSink
from switchyard.tables.writer import claim_attempt
from switchyard.upkeep import forget
from switchyard.upkeep.forget import CUT_OFF, DONE, SILENT, UNKNOWN
from tests.histories import activate
from tests.model import Event
from tests.properties.test_batches import batch_table
from tests.specs import TARGET, make_settings, make_spec
from tests.waiting import eventually

EVENTS = [Event("user", "a", 1, 0, 0), Event("account", "a", 2, 0, 0), Event("user", "b", 3, 0, 1)]
ENDS = {"users": {0: 3}, "accounts": {0: 1}}


@pytest.fixture
def root(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("SWITCHYARD_ROOT", layout.root)
    return layout


def reject(value: str) -> dict[str, object]:
    return {"kind": "reject", "userPartition": 0, "userOffset": 2, "value": value, "reason": "age must be a number"}


def write_batch(layout: Layout, is_reported: bool = True, value: str = '{"userId": "a", "age": "x"}') -> BatchSink:
    """Generation 1 with one batch: two users, an account, a reject."""
    spec = keep_spec(layout, make_spec(joinType="left"))
    sink = BatchSink(layout, spec, claim_attempt(layout, 1))
    rows = pa.concat_tables([batch_table([], EVENTS, "left"), pa.Table.from_pylist([reject(value)], BATCH_SCHEMA)])
    if is_reported:
        report_batch(layout, sink, 0, -1)
        sink.commit_arrow(0, rows)
        report_batch(layout, sink, 1, 0)
    else:
        sink.commit_appended("users", 0, joined_changes.event_rows(joined_changes.split_batch(rows), LEFT, "users"))
    return sink


def report_batch(layout: Layout, sink: BatchSink, count: int, batch_id: int) -> None:
    versions = {f"{name}Version": version for name, version in sink.versions().items()}
    attempt = sink.writers["users"].attempt
    row = Progress(
        generation=1,
        attempt=attempt,
        batchId=batch_id,
        at=datetime.now(UTC),
        inputRows=count,
        rowsPerSecond=0.0,
        batchMs=0,
        lag=0,
        rejectedRows=0,
        tombstones=0,
        startOffsets=None,
        endOffsets=json.dumps(ENDS),
        **versions,
    )
    report(layout, row)


def user_ids(layout: Layout, name: str, version: int | None = None) -> list[str]:
    return sorted(row["userId"] for row in store.read_rows(layout, name, version=version))


def test_an_ended_generation_forgets_and_its_readers_see_it(layout: Layout) -> None:
    write_batch(layout)
    before = newest_progress(layout, 1)
    assert add_mark(layout, "a", ENDS, {}, "test") == 1
    assert forget.carry_out_in_ended(layout, 1) == DONE
    progress = newest_progress(layout, 1)
    assert before is not None
    assert progress is not None
    assert (progress.batchId, progress.startOffsets, progress.endOffsets) == (0, None, before.endOffsets)
    assert progress.attempt > before.attempt
    for name in ("users", "accounts", "joined"):
        assert user_ids(layout, name, progress.version_of(name)) == (["b"] if name != "accounts" else [])
        assert "a" in user_ids(layout, name, before.version_of(name))
    rejects = store.read_rows(layout, "rejects", version=progress.rejectsVersion)
    assert sorted((row["topic"], row["offset"]) for row in rejects) == [("accounts", 0), ("users", 0), ("users", 2)]
    assert {(row["value"], row["reason"]) for row in rejects} == {(None, REASON)}
    assert forget.mark_at(layout, progress) == 1
    assert forget.mark_at(layout, before) == 0


def test_forgetting_again_changes_nothing(layout: Layout) -> None:
    write_batch(layout)
    add_mark(layout, "a", ENDS, {}, "test")
    forget.carry_out_in_ended(layout, 1)
    rows = {name: store.read_rows(layout, name) for name in ("users", "accounts", "joined", "rejects", "progress")}
    assert forget.carry_out_in_ended(layout, 1) == DONE
    assert rows == {name: store.read_rows(layout, name) for name in rows}


def test_a_driver_that_was_thought_dead_cannot_write_after_it(layout: Layout) -> None:
    sink = write_batch(layout)
    add_mark(layout, "a", ENDS, {}, "test")
    forget.carry_out_in_ended(layout, 1)
    with pytest.raises(FencedError):
        sink.commit_arrow(1, batch_table(EVENTS, [Event("account", "a", 9, 0, 1)], "left"))
    assert user_ids(layout, "joined") == ["b"]


def test_half_a_batch_is_left_to_its_replay(layout: Layout) -> None:
    write_batch(layout, is_reported=False)
    add_mark(layout, "a", ENDS, {}, "test")
    assert forget.carry_out_in_ended(layout, 1) == CUT_OFF
    assert user_ids(layout, "users") == ["a", "b"]


def test_a_generation_without_a_spec_is_said_to_be_pending(layout: Layout) -> None:
    assert forget.carry_out_in_ended(layout, 7) == UNKNOWN


def test_waiting_ends_when_readers_see_it_or_the_driver_is_silent(layout: Layout) -> None:
    settings = make_settings(layout, stale_seconds=0.1, heartbeat_seconds=0.1)
    sink = write_batch(layout)
    mark = add_mark(layout, "a", ENDS, {}, "test")
    assert forget.wait_for_driver(settings, 1, mark, lambda line: None) == SILENT
    sink.carry_out_marks()
    assert forget.wait_for_driver(settings, 1, mark, lambda line: None) == SILENT
    report_batch(layout, sink, 0, 0)
    assert forget.wait_for_driver(settings, 1, mark, lambda line: None) == DONE


def test_the_driver_does_it_while_the_generation_lives_and_the_command_when_it_has_retired(layout: Layout) -> None:
    settings = make_settings(layout, stale_seconds=0.1, heartbeat_seconds=0.1)
    history = HistoryStore(layout)
    activate(history, "first", TARGET, 1)
    write_batch(layout)
    mark = add_mark(layout, "a", ENDS, {}, "test")
    assert forget.carry_out(settings, history, 1, mark, lambda line: None) == SILENT
    assert user_ids(layout, "users") == ["a", "b"]
    activate(history, "second", replace(TARGET, joinType="inner"), 2)
    later = datetime.now(UTC)
    assert transitions.try_retire(history, 1, "", later, Rules(linger=timedelta()), lambda generation: later)
    assert forget.carry_out(settings, history, 1, mark, lambda line: None) == DONE
    assert user_ids(layout, "users") == ["b"]


def test_a_dry_run_counts_and_changes_nothing(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    write_batch(root)
    assert main(["forget", "--user-id", "a", "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["mark"], said["found"]) == (None, {"users": 1, "accounts": 1, "joined": 1, "rejects": 1})
    assert not store.has_table(root, "forgotten") or read_marks(root) == Marks()
    assert user_ids(root, "users") == ["a", "b"]


def test_the_id_may_come_from_the_standard_input(
    root: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_batch(root)
    (tmp_path / "id").write_text("b\n")
    with (tmp_path / "id").open() as source:
        monkeypatch.setattr("sys.stdin", source)
        assert main(["forget", "--user-id", "-", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"]["users"] == 1


@pytest.mark.parametrize("user_id", ["", "x" * 10_001, "\udcff"])
def test_a_bad_id_is_refused_without_being_repeated(
    root: Layout, user_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forget", "--user-id", user_id, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("switchyard: the user id ")
    assert "xxx" not in said
    with pytest.raises(InputError):
        forget.check_user_id(user_id)


def test_where_nothing_ever_ran_there_is_nothing_to_forget(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", "--user-id", "a", "--json"]) == 2
    assert "nothing to forget" in json.loads(capsys.readouterr().out)["error"]
    assert read_marks(root) == Marks()


@pytest.mark.parametrize(
    ("value", "owner"),
    [
        ('{"userId": "a", "age": "x"}', "a"),
        ('{"userId": 7}', "7"),
        ('{"userId": "a", "userId": "b"}', "b"),
        ('{"userId": "\\u00e9"}', "é"),
        ('{"userId": null}', None),
        ('{"userId": "\\ud83d"}', None),
        ('{"userId": "a", "age": 1' + "0" * 5000 + "}", "a"),
        ('{"userId": {"a": 1}}', None),
        ('{"userId": "a"', None),
        ('["a"]', None),
        ("[" * 100_000, None),
        ("", None),
        (None, None),
    ],
)
def test_whose_a_rejected_record_is(value: str | None, owner: str | None) -> None:
    assert owner_of(value) == owner


def test_marks_are_numbered_and_hold_no_id(layout: Layout) -> None:
    for person in ("a", "b", "a"):
        add_mark(layout, person, {"t": {0: 1}}, {"users": 2}, "test")
    marks = read_marks(layout)
    assert [mark.number for mark in marks.marks] == [1, 2, 3]
    assert marks.marks[0].userHash == marks.marks[2].userHash == hash_user(marks.salt, "a")
    assert len({row["salt"] for row in store.read_rows(layout, "forgotten")}) == 1
    assert marks.up_to(1).after(0).newest == 1
    assert marks.find_persons(["a", "c", None]) == {"a"}


def test_an_idle_driver_forgets_beside_its_watch_and_reports_the_new_versions(
    layout: Layout, settings: Settings
) -> None:
    write_batch(layout)
    runner = BatchRunner(settings, make_spec(joinType="left"), claim_attempt(layout, 1))
    mark = add_mark(layout, "a", ENDS, {}, "test")
    assert runner.sink.has_new_marks()
    runner.forget_soon()
    eventually(lambda: not runner.sink.has_new_marks())
    with runner.busy:
        runner.progress.report_alive()
    progress = newest_progress(layout, 1)
    assert progress is not None
    assert (progress.batchId, forget.mark_at(layout, progress)) == (0, mark)
    assert user_ids(layout, "joined", progress.joinedVersion) == ["b"]
    assert "forgotten: 1 of users, 1 of accounts, 1 of joined, 1 of rejects" in [
        row["msg"] for row in store.read_rows(layout, "logs")
    ]


def test_an_idle_driver_leaves_half_a_batch_to_its_replay_and_notices_a_successor(
    layout: Layout, settings: Settings
) -> None:
    write_batch(layout, is_reported=False)
    runner = BatchRunner(settings, make_spec(joinType="left"), claim_attempt(layout, 1))
    add_mark(layout, "a", ENDS, {}, "test")
    runner._forget_in_thread()
    assert user_ids(layout, "users") == ["a", "b"]
    write_batch(layout)
    runner._forget_in_thread()
    assert runner.fenced is None
    runner.progress.position = position_of(newest_progress(layout, 1))
    runner._forget_in_thread()
    assert isinstance(runner.fenced, FencedError)
    assert runner.failure is None


def test_what_fails_while_forgetting_ends_the_driver_with_a_reason(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    write_batch(layout)
    runner = BatchRunner(settings, make_spec(joinType="left"), claim_attempt(layout, 1))
    add_mark(layout, "a", ENDS, {}, "test")
    for path in Path(layout.table("users")).rglob("*.parquet"):
        path.unlink()
    runner._forget_in_thread()
    assert runner.failure is not None
    assert runner.failure.startswith("forgetting failed: ")
