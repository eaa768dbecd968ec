"""What `up` decides about the run of a generation, and which processes it asks to stop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from switchyard.drivers.running_drivers import choose_targets
from switchyard.local.first_generation import Action, choose_action
from switchyard.policies import Target
from switchyard.swap.history import Entry, Event, Ledger
from switchyard.swap.reconcile import run_of_life


@pytest.mark.parametrize(
    ("run_state", "was_started", "action"),
    [
        (None, False, Action.TRIGGER),
        ("failed", False, Action.CLEAR),
        ("success", False, Action.CLEAR),
        ("running", False, Action.WAIT),
        ("queued", True, Action.WAIT),
        ("failed", True, Action.GIVE_UP),
        (None, True, Action.GIVE_UP),
    ],
)
def test_a_run_is_started_or_reopened_once(run_state: str | None, was_started: bool, action: Action) -> None:
    assert choose_action(run_state, was_started) is action


def ledger(*events: tuple[str, Event, int]) -> Ledger:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    target = Target("users", "accounts", "left")
    return Ledger.of(
        Entry(swap_id, event, generation, target, "latest", "airflow:admin", at=began + timedelta(seconds=number))
        for number, (swap_id, event, generation) in enumerate(events)
    )


def test_a_driver_lives_in_the_run_of_the_last_request_that_got_one() -> None:
    started = ("control-0-1", Event.REQUESTED, 1), ("control-0-1", Event.STARTING, 1)
    rolled_back = ("rollback-x", Event.REQUESTED, 1)
    resumed = ("control-0-9", Event.REQUESTED, 1), ("control-0-9", Event.STARTING, 1)
    by_hand = ("run:mine", Event.REQUESTED, 2), ("run:mine", Event.STARTING, 2)
    runs = [
        run_of_life(ledger(*started), 1),
        run_of_life(ledger(*started, rolled_back), 1),
        run_of_life(ledger(*started, rolled_back, *resumed), 1),
        run_of_life(ledger(*started, *by_hand), 2),
    ]
    assert [run and run.run_id for run in runs] == ["generation-1", "generation-1", "generation-1.3", "mine"]
    assert run_of_life(ledger(*started), 7) is None


def test_a_snapshot_has_no_run_in_which_a_driver_lives() -> None:
    published = [
        ("backfill-a", Event.REQUESTED, 1),
        ("backfill-a", Event.PLANNED, 1),
        ("publish-a", Event.REQUESTED, 1),
        ("publish-a", Event.APPLIED, 1),
    ]
    assert run_of_life(ledger(*published), 1) is None


def test_the_python_driver_is_asked_and_not_the_jvm_around_it() -> None:
    session_of = {10: 10, 11: 10, 20: 20, 21: 20}.get
    assert choose_targets([10, 11], {11}, session_of) == {11}
    assert choose_targets([10, 11, 20], {11}, session_of) == {11, 20}
    assert choose_targets([20, 21], set(), session_of) == {20}
