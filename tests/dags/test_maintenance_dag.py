"""The maintenance DAG: its form refuses a short retention, and no step keeps the others from running."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from switchyard.upkeep.maintenance import ORDER
from tests.dags.test_generation_params import fill_form

if TYPE_CHECKING:
    from airflow.sdk import DAG


@pytest.fixture
def maintenance(dags: dict[str, DAG]) -> DAG:
    return dags["switchyard_maintenance"]


def test_the_form(maintenance: DAG) -> None:
    assert fill_form(maintenance) == {"dry_run": False, "retention_hours": None}
    assert fill_form(maintenance, retention_hours=1, dry_run=True)["retention_hours"] == 1
    for hours in (0.9, -1, "many"):
        with pytest.raises(ValueError, match="Invalid input for param"):
            fill_form(maintenance, retention_hours=hours)


def test_steps_follow_each_other_whatever_became_of_the_one_before(maintenance: DAG) -> None:
    for before, after in pairwise([*ORDER, "report"]):
        assert maintenance.get_task(after).upstream_task_ids == {before}
        assert maintenance.get_task(after).trigger_rule == "all_done"
    assert maintenance.max_active_runs == 1
