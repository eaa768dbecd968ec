"""The DAG of the spare driver, and that a task that takes a spare expects what it was started with."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pendulum
import pytest

from switchyard.drivers.detached_process import DetachedProcess, start_detached
from switchyard.drivers.hand_off import HandOff, describe_place
from switchyard.drivers.spares import Offer, Order
from switchyard.kafka.client_settings import write_properties
from switchyard.settings import Settings
from switchyard.swap.reconcile import Run
from tests.dags.conftest import DAGS, load_dag
from tests.unit.drivers.stand_in import stand_in

if TYPE_CHECKING:
    from airflow.sdk import DAG

# Larger than any process id can be.
NOBODY = 2**22 + 1
KAFKA = {"bootstrap.servers": "127.0.0.1:9092"}
RUN = Run(
    "generation-7",
    "note",
    {
        "swap_id": "swap-7",
        "generation": 7,
        "users_topic": "users",
        "accounts_topic": "accounts",
        "join_type": "left",
        "start": "latest",
    },
)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    return Settings(root=str(tmp_path), spare=True)


def test_it_runs_all_the_time_when_it_is_wanted_and_never_when_not(
    dags: dict[str, DAG], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dags["switchyard_spare"].schedule is None
    monkeypatch.setenv("SWITCHYARD_SPARE", "true")
    wanted = load_dag(DAGS / "switchyard_spare.py")
    assert wanted.schedule == "@continuous"
    assert (wanted.max_active_runs, wanted.task_ids) == (1, ["wait"])
    assert wanted.start_date is not None
    first, second = plan_runs(wanted.start_date)
    assert first != second, "Airflow makes no second run with the logical date of the first"


def plan_runs(start_date: datetime) -> list[datetime | None]:
    """The logical dates of the first two runs, as the scheduler asks for them."""
    from airflow.timetables.base import DataInterval, TimeRestriction
    from airflow.timetables.simple import ContinuousTimetable

    restriction = TimeRestriction(pendulum.instance(start_date), None, False)
    interval: DataInterval | None = None
    dates: list[datetime | None] = []
    for _ in range(2):
        planned = ContinuousTimetable().next_dagrun_info(last_automated_data_interval=interval, restriction=restriction)
        assert planned is not None
        interval = planned.data_interval
        dates.append(planned.logical_date)
    return dates


def test_a_spare_is_started_with_what_a_driver_is_started_with(dags: dict[str, DAG], settings: Settings) -> None:
    from switchyard.airflow.spare_tasks import APPLICATION, NAME
    from switchyard.airflow.spark_submit import read_submit

    taker = dags["switchyard_generation"].get_task("stream").read_submit(settings)
    spare = read_submit(settings)
    assert taker.fingerprint("") == spare.fingerprint("")
    assert taker.place.is_here
    assert spare.make_command(NAME, APPLICATION, ["--spare", "x"])[-3:] == [APPLICATION, "--spare", "x"]


def test_an_order_that_nobody_takes_leaves_nothing_behind(settings: Settings) -> None:
    from switchyard.airflow.spare_orders import adopt, give_early

    assert give_early(settings, KAFKA, RUN) is False
    hand_off = HandOff.create(settings.workspace, {"code": "of yesterday"})
    hand_off.offer(Offer(pid=NOBODY, session=NOBODY, place=describe_place(), fingerprint=hand_off.read_fingerprint()))
    assert give_early(settings, KAFKA, RUN) is False
    assert hand_off.is_claimed, "a spare that is outdated is ended, so that it is replaced"
    assert list(settings.workspace.secrets.glob("*")) == []
    assert adopt(settings, "swap-7") is None


def test_two_orders_of_one_process_for_one_generation_do_not_share_their_settings(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the watcher gives them, when a message comes while it still works on the one before."""
    from switchyard.airflow import spare_orders
    from switchyard.airflow.spark_submit import read_submit

    give_order, others = spare_orders._give_order, [spare_orders.give_early]
    answers: list[bool] = []

    def give_after_another(*given: Any) -> bool:
        if others:
            answers.append(others.pop()(settings, KAFKA, RUN))
        return give_order(*given)

    monkeypatch.setattr(spare_orders, "_give_order", give_after_another)
    with stand_in(settings.workspace, read_submit(settings).fingerprint("")) as (hand_off, _):
        assert spare_orders.give_early(settings, KAFKA, RUN) is False, "there was one spare"
        assert answers == [True]
        order = hand_off.read_order()
        assert order is not None
        assert list(settings.workspace.secrets.glob("*")) == [order.kafkaProperties]


@pytest.mark.parametrize(("ending", "code"), [("exit 75", 75), ("kill -9 0", -9), ("exit 0", 0)])
def test_the_task_of_a_generation_follows_a_driver_that_was_a_spare_to_its_end(
    dags: dict[str, DAG], settings: Settings, ending: str, code: int
) -> None:
    """`kill 0` ends the whole session, as the system does that is short of memory."""
    stream = dags["switchyard_generation"].get_task("stream")
    hand_off = HandOff.create(settings.workspace, {})
    hand_off.give(Order(generation=7, kafkaProperties=settings.workspace.kafka_properties(7, 1), swapId="swap-7"))
    assert hand_off.accept() is not None
    write_properties(settings.workspace.kafka_properties(7, 1), KAFKA)
    script = f": {hand_off.folder}; echo last words; {ending}"
    started = start_detached(hand_off.folder, ["/bin/sh", "-c", script], os.environ)
    failure = stream._follow_spare(settings, 7, DetachedProcess(hand_off.folder, started.pid))
    started.wait()
    assert stream._driver.exit_code == code
    assert (failure is None) == (code == 0)
    assert failure is None or "last words" in str(failure)
    assert not hand_off.folder.exists()
    assert list(settings.workspace.secrets.glob("*")) == []
