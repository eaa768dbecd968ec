"""What `up` decides about the run of a generation, and which processes it asks to stop."""

from __future__ import annotations

import pytest

from switchyard.local.drivers import choose_targets
from switchyard.local.keeper import Action, choose_run_id, decide


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
    assert decide(run_state, was_started) is action


def test_a_refused_first_run_keeps_its_name() -> None:
    states = {"generation-1": "failed", "generation-1-again-2": "failed"}
    assert choose_run_id(1, states.get) == "generation-1-again-3"
    assert choose_run_id(2, states.get) == "generation-2"


def test_the_python_driver_is_asked_and_not_the_jvm_around_it() -> None:
    session_of = {10: 10, 11: 10, 20: 20, 21: 20}.get
    assert choose_targets([10, 11], {11}, session_of) == {11}
    assert choose_targets([10, 11, 20], {11}, session_of) == {11, 20}
    assert choose_targets([20, 21], set(), session_of) == {20}
