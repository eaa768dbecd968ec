"""The form of switchyard_generation refuses what can be refused before anything runs."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from tests.dags.conftest import DAGS, load_dag

if TYPE_CHECKING:
    from airflow.sdk import DAG


@pytest.fixture
def generation(dags: dict[str, DAG]) -> DAG:
    return dags["switchyard_generation"]


def fill_form(dag: DAG, **values: Any) -> dict[str, Any]:
    params = deepcopy(dag.params)
    params.update(values)
    return dict(params.validate())


def test_defaults_keep_what_is_read_now(generation: DAG) -> None:
    assert fill_form(generation) == {
        "users_topic": "",
        "accounts_topic": "",
        "join_type": "",
        "start": "",
        "dry_run": False,
        "deadline_seconds": None,
    }


@pytest.mark.parametrize("topic", ["two words", "a,b", "slash/es", "x" * 250, "ünicode"])
@pytest.mark.parametrize("field", ["users_topic", "accounts_topic"])
def test_bad_topic_is_refused(generation: DAG, field: str, topic: str) -> None:
    with pytest.raises(ValueError, match="Invalid input for param"):
        fill_form(generation, **{field: topic})


@pytest.mark.parametrize("join_type", ["outer", "LEFT", 1])
def test_unknown_join_is_refused(generation: DAG, join_type: Any) -> None:
    with pytest.raises(ValueError, match="Invalid input for param"):
        fill_form(generation, join_type=join_type)


@pytest.mark.parametrize("join_type", ["left", "inner", "natural", "asof"])
def test_each_join_is_accepted(generation: DAG, join_type: str) -> None:
    assert fill_form(generation, join_type=join_type)["join_type"] == join_type


@pytest.mark.parametrize(
    "start",
    ["", None, "latest", "earliest", "resume", "2026-01-31T08:00:00Z", "2026-01-31T08:00:00.5+01:00"],
)
def test_start_is_accepted(generation: DAG, start: str | None) -> None:
    assert fill_form(generation, start=start)["start"] == start


@pytest.mark.parametrize("start", ["now", "yesterday", "latest ", "31.01.2026", "-1"])
def test_bad_start_is_refused(generation: DAG, start: str) -> None:
    with pytest.raises(ValueError, match="Invalid input for param"):
        fill_form(generation, start=start)


@pytest.mark.parametrize("seconds", [0.5, 300, None])
def test_a_deadline_is_accepted(generation: DAG, seconds: float | None) -> None:
    assert fill_form(generation, deadline_seconds=seconds)["deadline_seconds"] == seconds


@pytest.mark.parametrize("seconds", [0, -1, "300", "soon", True, 31_536_001])
def test_a_bad_deadline_is_refused(generation: DAG, seconds: Any) -> None:
    with pytest.raises(ValueError, match="Invalid input for param"):
        fill_form(generation, deadline_seconds=seconds)


def test_close_runs_whatever_became_of_the_stream(generation: DAG) -> None:
    assert generation.get_task("stream").upstream_task_ids == set()
    assert generation.get_task("close").upstream_task_ids == {"stream"}
    assert generation.get_task("close").trigger_rule == "all_done"
    assert {task.task_id for task in generation.leaves} == {"close"}


def test_the_control_dag_runs_one_round_at_a_time(dags: dict[str, DAG]) -> None:
    control = dags["switchyard_control"]
    assert control.max_active_runs == 1
    assert not control.catchup
    assert control.task_ids == ["take_commands"]


def test_more_generations_run_when_they_are_kept(generation: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generation.max_active_runs == 8
    monkeypatch.setenv("SWITCHYARD_KEEP_GENERATIONS", "true")
    assert load_dag(DAGS / "switchyard_generation.py").max_active_runs == 64
