"""Kept generations in real tables: how they are shown, how a person ends one, and what a stop of everything does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from switchyard.cli.main import main
from switchyard.drivers.processes import boot_id
from switchyard.drivers.supervisor_state import ComponentState, State, read_state, write_state
from switchyard.layout import BIG_TABLES, Layout, attempt_app_id
from switchyard.local import up
from switchyard.local.airflow import airflow_environment
from switchyard.local.supervisor import Supervisor
from switchyard.policies import Rules, Target
from switchyard.settings import Settings
from switchyard.swap import flip, transitions
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import open_history
from switchyard.swap.reconcile import retire_kept
from switchyard.tables import store
from switchyard.web.access import Access, Viewer
from switchyard.web.api import create_app

JOINS = ("left", "inner", "natural", "asof")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("SWITCHYARD_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("SWITCHYARD_KEEP_GENERATIONS", "true")
    return Layout(str(tmp_path / "root"))


@pytest.fixture
def history(root: Layout) -> HistoryStore:
    """Four generations that were active one after the other, and a fifth that is being built."""
    history = open_history(root)
    for number in range(1, 5):
        ask(history, number)
        now = datetime.now(UTC)
        assert flip.try_flip(history, f"s-{number}", now, Rules(dwell=timedelta()))
        transitions.settle_due(history, now)
    ask(history, 5)
    return history


def ask(history: HistoryStore, number: int) -> None:
    target, deadline = Target("users", "accounts", JOINS[number % 4]), datetime.now(UTC) + Rules().ready_deadline
    asked = transitions.ask_once(history, f"s-{number}", "test", number, target, deadline=deadline)
    for event in (Event.STARTING, Event.READY):
        transitions.note(history, asked.entry(event))


def lingering(history: HistoryStore) -> list[int | None]:
    return [entry.generation for entry in history.ledger().lingering]


def attempts(layout: Layout, generation: int) -> set[int | None]:
    return {store.open_table(layout, name).transaction_version(attempt_app_id(generation)) for name in BIG_TABLES}


@pytest.mark.parametrize("seconds", [900, 0])
def test_status_shows_when_each_will_retire(
    history: HistoryStore, seconds: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_RETIRE_AFTER_SECONDS", str(seconds))
    main(["status", "--json"])
    status = json.loads(capsys.readouterr().out)
    assert status["lingering"] == [1, 2, 3]
    ends = [
        (entry.at + timedelta(seconds=seconds)).isoformat(timespec="seconds") for entry in history.ledger().lingering
    ]
    assert status["retires"] == [
        {"generation": generation, "at": end if seconds else None}
        for generation, end in zip((1, 2, 3), ends, strict=True)
    ]


def test_the_page_is_told_when_each_will_retire(root: Layout, history: HistoryStore, tmp_path: Path) -> None:
    """Of these its fact *lingering* is made."""
    for name in ("index.html", "page.js"):
        (tmp_path / name).touch()
    everybody = Access(read=lambda: Viewer("test"), command=lambda: Viewer("test"))
    client = TestClient(create_app(Settings(root=root.root), everybody, tmp_path))
    shown = client.get("/api/v1/status").json()
    assert shown["lingering"] == [1, 2, 3]
    assert [(one["generation"], datetime.fromisoformat(one["at"])) for one in shown["retires"]] == [
        (entry.generation, (entry.at + timedelta(seconds=900)).replace(microsecond=0))
        for entry in history.ledger().lingering
    ]


def test_one_that_is_kept_is_retired_by_hand_and_fenced_out(
    root: Layout, history: HistoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retire", "2"]) == 0
    assert capsys.readouterr().out == "generation 2 has retired; its driver ends within seconds\n"
    last = history.ledger().entries[-1]
    assert (last.swapId, last.event, last.generation) == ("s-2", Event.RETIRED, 2)
    assert last.detail.startswith("asked for by cli:")
    assert (lingering(history), attempts(root, 2), attempts(root, 1)) == ([1, 3], {1}, {None})
    assert main(["retire", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"generation": 3, "retired": True}


@pytest.mark.parametrize(
    ("generation", "reason"),
    [
        (1, "generation 1 has retired already"),
        (4, "generation 4 is active"),
        (5, "generation 5 is being built or taken back by s-5"),
        (6, "there is no generation 6"),
    ],
)
def test_what_cannot_be_retired_is_refused_with_a_sentence(
    history: HistoryStore, generation: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retire", "1"]) == 0
    before = history.ledger()
    assert main(["retire", str(generation)]) == 2
    assert reason in capsys.readouterr().err
    assert history.ledger() == before


def test_what_is_kept_retires_and_nothing_else_does(root: Layout, history: HistoryStore) -> None:
    assert retire_kept(root, history) == [1, 2, 3]
    assert lingering(history) == []
    assert history.status_row().generation == 4
    assert history.ledger().pending is not None
    assert {generation: attempts(root, generation) for generation in (1, 3)} == {1: {1}, 3: {1}}


@pytest.fixture
def left_over() -> Iterator[int]:
    """A process of an `up` whose supervisor was killed."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def stop_all(settings: Settings, left_over: int, keeps: bool) -> list[str]:
    """A `down` in a shell that knows nothing of what that `up` was told."""
    settings.workspace.run.mkdir(parents=True)
    state = State(pid=left_over, boot=boot_id(), keeps=keeps, components={"demo": ComponentState(left_over)})
    write_state(settings.workspace, state)
    said: list[str] = []
    up.down(settings, said.append)
    return said


@pytest.mark.parametrize("keeps", [True, False])
def test_down_goes_by_what_up_was_told(
    root: Layout, history: HistoryStore, left_over: int, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHYARD_KEEP_GENERATIONS", "false" if keeps else "true")
    said = stop_all(Settings(root=root.root), left_over, keeps)
    assert said == [*(f"generation {n} was kept and has retired" for n in (1, 2, 3) if keeps), "stopped"]
    assert lingering(history) == ([] if keeps else [1, 2, 3])


def test_down_leaves_the_tables_alone_when_nothing_was_kept(tmp_path: Path, left_over: int) -> None:
    settings = Settings(root=str(tmp_path))
    assert stop_all(settings, left_over, keeps=False) == ["stopped"]
    assert not Path(settings.layout.under("tables")).exists()


def test_down_stops_where_the_tables_cannot_be_reached(
    tmp_path: Path, left_over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    settings = Settings(root="s3://nowhere/root", home=tmp_path)
    told, stopped = stop_all(settings, left_over, keeps=True)
    assert told.startswith("generations that were kept could not be retired: ")
    assert told.endswith("; end each with `switchyard retire N`")
    assert stopped == "stopped"


def test_the_supervisor_tells_whether_it_keeps(tmp_path: Path) -> None:
    for keeps in (True, False):
        settings = Settings(root=str(tmp_path), keep_generations=keeps)
        settings.workspace.run.mkdir(parents=True, exist_ok=True)
        Supervisor(settings, demo=False)._report("starting")
        state = read_state(settings.workspace)
        assert state is not None
        assert state.keeps == keeps


def test_a_down_on_a_machine_where_nothing_runs_retires_nothing(history: HistoryStore) -> None:
    up.down(Settings(), lambda line: None)
    assert lingering(history) == [1, 2, 3]


def test_airflow_has_room_for_the_kept_ones_and_for_all_other_tasks(tmp_path: Path) -> None:
    for keeps, room in ((False, 16), (True, 72)):
        settings = Settings(root=str(tmp_path), keep_generations=keeps)
        assert airflow_environment(settings, base={})["AIRFLOW__CORE__PARALLELISM"] == str(room)
        assert settings.most_generations < room
