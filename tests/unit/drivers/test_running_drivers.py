"""Spares among the processes of this machine: listed, judged by health, ended."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from switchyard.drivers.running_drivers import SpareProcess, end_spare, list_spares, stop_drivers
from switchyard.health import checks
from switchyard.health.checks import HealthInputs, Level
from switchyard.layout import Workspace
from switchyard.settings import Settings
from switchyard.swap.history import Ledger, StatusRow
from tests.unit.drivers.stand_in import stand_in
from tests.waiting import eventually


def test_down_ends_spares_with_everything_that_belongs_to_them(workspace: Workspace) -> None:
    with stand_in(workspace) as (hand_off, process):
        stop_drivers(workspace, 10)
        # The stand-in knows no signals; the shell around it writes down how it ended.
        assert eventually(process.poll) == 128 + signal.SIGTERM
        assert not hand_off.pulse.exists()
        assert list_spares(workspace) == []


def test_health_ends_a_spare_that_hangs_and_any_that_is_not_wanted(workspace: Workspace) -> None:
    limits = replace(Settings(hung_seconds=45, ready_deadline_seconds=120).limits, has_spare=True)
    second = timedelta(seconds=1)

    def judge(spare: SpareProcess | None, has_spare: bool = True) -> tuple[Level, str]:
        spares = [spare] if spare else []
        inputs = HealthInputs(datetime.now(UTC), Ledger(), StatusRow(epoch=0), spares=spares)
        verdict = checks.check_drivers(inputs, replace(limits, has_spare=has_spare))
        return verdict.level, verdict.text

    ready = SpareProcess(1, "spare-1", 3600 * second, is_ready=True, silence=2 * second)
    assert judge(ready) == (Level.OK, "0 generations run here; a spare driver is ready")
    assert judge(None) == (Level.OK, "0 generations run here; there is no spare driver now")
    assert judge(None, has_spare=False) == (Level.OK, "0 generations run here")
    assert judge(replace(ready, silence=46 * second))[0] is Level.REPAIRING
    assert judge(ready, has_spare=False)[0] is Level.REPAIRING
    warming = replace(ready, is_ready=False, age=100 * second)
    assert judge(warming) == (Level.OK, "0 generations run here; a spare driver is warming up")
    assert judge(replace(warming, age=460 * second))[0] is Level.OK, "it rehearses, and shows life"
    assert judge(replace(warming, age=170 * second, silence=166 * second))[0] is Level.REPAIRING
    assert judge(replace(warming, age=466 * second))[0] is Level.REPAIRING, "no rehearsal takes so long"
    with stand_in(workspace) as (hand_off, process):
        found = list_spares(workspace)[0]
        assert hand_off.claim()
        assert not end_spare(workspace, found), "somebody is taking it"
        assert process.poll() is None
    with stand_in(workspace) as (_, process):
        assert end_spare(workspace, list_spares(workspace)[0])
        assert eventually(process.poll) == -signal.SIGKILL
