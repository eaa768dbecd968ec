"""The form of switchyard_backfill refuses what can be refused before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.dags.test_generation_params import fill_form

if TYPE_CHECKING:
    from airflow.sdk import DAG


@pytest.fixture
def backfill(dags: dict[str, DAG]) -> DAG:
    return dags["switchyard_backfill"]


def test_defaults_build_all_there_is_and_publish_nothing(backfill: DAG) -> None:
    assert fill_form(backfill) == {
        "users_topic": "",
        "accounts_topic": "",
        "join_type": "",
        "from": "earliest",
        "to": "latest",
        "publish": False,
        "generation": None,
    }


@pytest.mark.parametrize("edge", ["", "2026-01-31T08:00:00Z", "2026-01-31", '{"users": {"0": 10, "1": 3}}', None])
@pytest.mark.parametrize("side", ["from", "to"])
def test_an_edge_is_accepted(backfill: DAG, side: str, edge: str | None) -> None:
    assert fill_form(backfill, **{side: edge})[side] == edge


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("from", "latest"),
        ("to", "earliest"),
        ("from", "yesterday"),
        ("to", "resume"),
        ("to", "[1]"),
        ("users_topic", "two words"),
        ("accounts_topic", "x" * 250),
        ("join_type", "outer"),
        ("publish", "yes"),
        ("generation", 0),
        ("generation", "7"),
    ],
)
def test_what_is_no_order_is_refused(backfill: DAG, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match="Invalid input for param"):
        fill_form(backfill, **{field: value})


def test_nothing_is_published_before_it_is_built_and_the_end_is_always_told(backfill: DAG) -> None:
    assert backfill.get_task("build").upstream_task_ids == set()
    assert backfill.get_task("publish").upstream_task_ids == {"build"}
    assert backfill.get_task("publish").trigger_rule == "all_success"
    assert backfill.get_task("close").upstream_task_ids == {"publish"}
    assert backfill.get_task("close").trigger_rule == "all_done"
    assert {task.task_id for task in backfill.leaves} == {"close"}
