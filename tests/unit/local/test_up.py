"""What `down` does with generations that an `up` has kept."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.drivers.processes import boot_id
from switchyard.drivers.supervisor_state import ComponentState, State, write_state
from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.local import up
from switchyard.settings import Settings
from switchyard.swap.history_store import HistoryStore
from tests.kept_generations import lingering


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
    kept_root: Layout, kept: HistoryStore, left_over: int, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHYARD_KEEP_GENERATIONS", "false" if keeps else "true")
    said = stop_all(Settings(root=kept_root.root), left_over, keeps)
    assert said == [*(f"generation {n} was kept and has retired" for n in (1, 2, 3) if keeps), "stopped"]
    assert lingering(kept) == ([] if keeps else [1, 2, 3])


def test_an_airflow_that_runs_elsewhere_is_neither_started_nor_stopped_here(tmp_path: Path) -> None:
    settings = Settings(root=str(tmp_path), airflow_url="http://airflow-api-server:8080")
    sentence = "Airflow runs at http://airflow-api-server:8080, which SWITCHYARD_AIRFLOW_URL names"
    with pytest.raises(InputError, match=sentence):
        up.check_machine(settings)
    with pytest.raises(InputError, match=sentence):
        up.down(settings, print)
    assert list(tmp_path.iterdir()) == []


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


def test_a_down_on_a_machine_where_nothing_runs_retires_nothing(kept: HistoryStore) -> None:
    up.down(Settings(), lambda line: None)
    assert lingering(kept) == [1, 2, 3]
