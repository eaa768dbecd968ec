"""A driver that took an order, and that no task looks after."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.airflow.spare_orders import find_unowned
from switchyard.drivers.spare_claim import take_spare
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap import transitions
from switchyard.swap.log_messages import open_history
from tests.unit.drivers.stand_in import FINGERPRINT, ORDER, stand_in


def test_a_driver_that_nobody_has_adopted_gets_its_run(tmp_path: Path) -> None:
    settings = Settings(root=str(tmp_path))
    assert find_unowned(settings) is None

    history, target = open_history(settings.layout), Target("users", "accounts", "left")
    transitions.ask_once(history, "swap-7", "test", 7, target)
    with stand_in(settings.workspace) as (hand_off, _):
        assert find_unowned(settings) is None
        assert take_spare(settings.workspace, ORDER, FINGERPRINT, pytest.fail) is not None
        run = find_unowned(settings)
        assert run is not None
        assert (run.run_id, run.conf["swap_id"]) == ("generation-7", "swap-7")
        assert hand_off.adopt()
        assert find_unowned(settings) is None
