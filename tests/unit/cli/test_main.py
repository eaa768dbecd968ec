"""The command line: what it prints, its exit codes, and what it says to bad input."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from switchyard.cli.main import build_app, main
from switchyard.cli.operating import _last_error
from switchyard.drivers.supervisor_state import supervisor_arguments
from switchyard.layout import Layout
from switchyard.local.up import wants_demo
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap.history import Entry, Event, StatusRow
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.progress import Progress, report
from tests.histories import set_row, write


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("SWITCHYARD_ROOT", str(tmp_path / "root"))
    return Layout(str(tmp_path / "root"))


def test_status_before_anything_ran(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"healthy": False, "reason": "no generation is active yet"}


def test_logs_and_history_of_nothing_are_empty_lists(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("logs", "history"):
        assert main([command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []


def test_tail_shows_the_status_row(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    active = StatusRow(1, Target("users", "accounts", "left"), datetime.now(UTC), epoch=1)
    set_row(HistoryStore(root), active)
    assert main(["tail", "orchestrator_status", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["generation"], row["epoch"]) for row in rows] == [(1, 1)]
    assert main(["tail", "orchestrator_status"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["generation", "usersTopic", "accountsTopic"]
    assert line.split()[:3] == ["1", "users", "accounts"]


def test_status_is_for_people_and_its_json_for_programs(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    old, target = Target("users", "accounts", "left"), Target("people", "accounts", "inner")
    moment = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
    history = HistoryStore(root, clock=lambda: moment)
    for number in (1, 2):
        ended = [
            Entry(f"s{number}", Event.REQUESTED, number, old, deadline=moment),
            Entry(f"s{number}", Event.APPLIED, number),
            Entry(f"s{number}", Event.LINGERING, number),
        ]
        write(history, *ended)
    write(history, Entry("s4", Event.REQUESTED, 4, target, deadline=moment))
    set_row(history, StatusRow(3, old, moment, epoch=3))
    report(root, Progress(3, 1, 7, moment, 1, 1.0, 10, 0, 5, 6, 7, 8, 0, 0, None, None))

    assert main(["status"]) == 1
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["topics"] == "users, accounts"
    assert shown["versions"] == "users 5, accounts 6, joined 7, rejects 8"
    assert shown["lingering"] == "generations 1, 2"
    assert re.fullmatch(r"generation 1 at \S+, generation 2 at \S+", shown["retires"])
    assert shown["swapping"] == (
        "to generation 4, people and accounts, inner join: REQUESTED, until 2026-01-01 12:30:00 (s4)"
    )
    assert (shown["backfilling"], shown["snapshot"], shown["warnings"]) == ("-", "-", "-")
    assert shown["healthy"] == "no"
    assert not [line for line in shown.values() if any(sign in line for sign in "[]{}'")]

    assert main(["status", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["usersTopic"], document["accountsTopic"]) == ("users", "accounts")
    assert document["versions"] == {"users": 5, "accounts": 6, "joined": 7, "rejects": 8}
    assert (document["lingering"], document["backfilling"], document["healthy"]) == ([1, 2], [], False)
    assert document["swapping"]["swapId"] == "s4"


def test_log_lines_are_in_order(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    for second, text in ((2, "later"), (1, "sooner")):
        moment = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
        store.append_rows(root, "logs", [{"ts": moment, "level": "INFO", "msg": text, "generation": 4}])
    assert main(["logs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "2026-01-01 00:00:01.000  INFO     g4    sooner",
        "2026-01-01 00:00:02.000  INFO     g4    later",
    ]


def test_unknown_table_is_bad_input(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", "nope", "--json"]) == 2
    printed = capsys.readouterr()
    assert "there is no table named 'nope'" in json.loads(printed.out)["error"]
    assert printed.err.startswith("switchyard: there is no table")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["swap", "--start", "soon"], "none of latest, earliest"),
        (["swap", "--users-topic", "a,b"], "'a,b' is not a topic name that may be joined"),
        (["swap", "--accounts-topic", "__consumer_offsets", "--wait"], "is not a topic name that may be joined"),
        (["swap", "--users-topic", "a", "--accounts-topic", " a "], "cannot both come from the topic a;"),
        (["swap", "--users-topic", "control"], "control is the control topic and cannot be joined"),
        (["swap", "--id", "x" * 201], "1 to 200 characters"),
        (["swap", "--id", "undo-x"], "may not begin with"),
        (["swap", "--id", "backfill-x"], "may not begin with"),
        (["plan", "--start", "soon"], "none of latest, earliest"),
        (["backfill", "--from", "soon"], "is none of earliest"),
        (["backfill", "--join-type", "outer"], "'outer' is not a join type; use left"),
        (["backfill", "--from", "2026-01-02", "--to", "2026-01-01"], "is not before"),
    ],
)
def test_a_bad_command_is_refused_before_it_is_sent(
    root: Layout, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert reason in capsys.readouterr().err


def test_a_topic_outside_the_allow_list_is_refused_before_it_is_sent(
    root: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_ALLOWED_TOPICS", "eu.*")
    assert main(["swap", "--users-topic", "us.users"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "the topic us.users is outside the allow-list (eu.*)" in printed.err) == ("", True)


def test_a_broker_that_is_away_is_one_sentence(
    root: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr("switchyard.kafka.control_topic._TIMEOUT_SECONDS", 1.0)
    assert main(["swap", "--join-type", "inner"]) == 1
    said = capsys.readouterr().err
    assert "is the broker up?" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["swap", "plan"])
@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "inf", "1e400", "31536001"])
def test_a_deadline_that_cannot_be_meant_is_refused(
    command: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--deadline-seconds", given])
    assert ended.value.code == 2
    reason = f"Invalid value for '--deadline-seconds': '{given}' is not a number above 0 and up to 31536000"
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["tail", "users_ui", "--limit", "0"], ["demo", "--rate", "-1"], ["demo", "--records", "0"], ["frobnicate"]],
)
def test_bad_arguments_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "Usage: switchyard" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bootstrap", "arguments", "expected"),
    [
        (None, [], True),
        (None, ["--no-demo"], False),
        ("kafka:9092", [], False),
        ("kafka:9092", ["--demo"], True),
        ("kafka:9092", ["--no-demo"], False),
    ],
)
def test_the_demo_writes_into_topics_of_another_broker_only_when_asked_to(
    tmp_path: Path, bootstrap: str | None, arguments: list[str], expected: bool
) -> None:
    settings = Settings(root=str(tmp_path), kafka_bootstrap=bootstrap)
    asked = build_app().commands["up"].make_context("up", arguments).params["demo"]
    assert wants_demo(settings, asked) is expected
    assert ("--no-demo" in supervisor_arguments(settings.workspace, wants_demo(settings, asked))) is not expected


def test_a_retention_that_is_too_short_is_refused(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", "--retention-hours", "0.5"]) == 2
    assert "give 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("pace", [["--rate", "5"], ["--seconds", "5"]])
def test_a_demo_of_so_many_records_has_no_pace(
    root: Layout, pace: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--records", "10", *pace]) == 2
    assert "--records has no pace" in capsys.readouterr().err


def test_follow_and_json_exclude_each_other(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--follow", "--json"]) == 2


def test_follow_shows_the_last_rows_and_then_only_new_ones(
    root: Layout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_line(second: int) -> None:
        moment = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
        store.append_rows(root, "logs", [{"ts": moment, "level": "INFO", "msg": str(second)}])

    rounds = iter([20, None])

    def wait(_: float) -> None:
        second = next(rounds)
        if second is None:
            raise KeyboardInterrupt
        add_line(second)

    for second in range(6):
        add_line(second)
    monkeypatch.setattr("switchyard.cli.reading.time.sleep", wait)
    assert main(["logs", "--limit", "2", "--follow"]) == 130
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["4", "5", "20"]


def test_bad_setting_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SWITCHYARD_KAFKA_PORT", "ninety")
    assert main(["status"]) == 2
    assert "SWITCHYARD_KAFKA_PORT" in capsys.readouterr().err


def test_down_when_nothing_runs(root: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 0
    assert capsys.readouterr().out == "nothing is running\n"


def test_an_error_that_nobody_foresaw_is_one_sentence_and_its_stack_is_in_a_log(
    root: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    store.append_rows(root, "logs", [{"ts": datetime.now(UTC), "level": "INFO", "msg": "jane@example.org"}])
    for path in Path(root.table("logs")).rglob("*.parquet"):
        path.write_text("jane@example.org")
    assert main(["logs", "--json"]) == 1
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert shown.err == f"switchyard: {error}\n"
    sentence, _, place = error.partition(" (all of it in ")
    assert sentence == "ArrowInvalid: Parquet magic bytes not found in footer"
    log = Path(place.removesuffix(")")).read_text()
    assert "in scan_file" in log
    assert "jane" not in log


def test_of_the_log_of_a_job_its_own_last_error_is_told(tmp_path: Path) -> None:
    log, of_spark = tmp_path / "audit.log", "26/11/18 ERROR Executor: Exception in task\n"
    log.write_text(f"{of_spark}2026-11-18 ERROR switchyard.audit the disk is full\n\tat x\n{of_spark}")
    assert _last_error(log) == "the disk is full"
    log.write_text(of_spark)
    assert _last_error(log) == "it was killed or could not start"


def test_a_terminal_gets_colours_and_the_same_words_and_a_pipe_plain_text(
    root: Layout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for level, text in (("INFO", "a [red]word[/red]"), ("ERROR", "wrong")):
        store.append_rows(root, "logs", [{"ts": datetime.now(UTC), "level": level, "msg": text, "generation": 4}])
    shown = {}
    for place in ("pipe", "terminal"):
        monkeypatch.setattr("sys.stdout.isatty", lambda place=place: place == "terminal", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        for command in (["logs"], ["tail", "orchestrator_logs"], ["tail", "orchestrator_logs", "--json"]):
            assert main(command) == 0
            shown[place, *command] = capsys.readouterr().out
    assert not [text for (place, *_), text in shown.items() if place == "pipe" and "\x1b" in text]
    assert "\x1b[31mERROR" in shown["terminal", "logs"]
    assert "\x1b[1m" in shown["terminal", "tail", "orchestrator_logs"]
    for (place, *command), text in shown.items():
        assert re.sub(r"\x1b\[[\d;]*m", "", text).split() == shown["pipe", *command].split(), place
    assert (
        shown["terminal", "tail", "orchestrator_logs", "--json"] == shown["pipe", "tail", "orchestrator_logs", "--json"]
    )
