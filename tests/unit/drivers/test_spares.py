"""The rules of a spare driver: which offer is good, how long it waits, and when one is started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from switchyard.drivers.spares import (
    Fitness,
    Offer,
    WaitDecision,
    Waiting,
    decide_wait,
    find_differences,
    judge_offer,
    may_warm_up,
)
from switchyard.swap.history import Ledger, StatusRow
from tests.unit.drivers.stand_in import FINGERPRINT


def test_an_offer_is_judged_by_its_machine_and_by_what_it_was_started_with() -> None:
    offer = Offer(pid=2, session=2, place="here", fingerprint=FINGERPRINT)
    assert judge_offer(offer, "here", FINGERPRINT) is Fitness.FIT
    assert judge_offer(offer, "there", {}) is Fitness.ELSEWHERE
    for other in ({}, {**FINGERPRINT, "code": "c"}, {**FINGERPRINT, "jars": "d"}):
        assert judge_offer(offer, "here", other) is Fitness.OUTDATED
    assert find_differences(FINGERPRINT, {"code": "c", "settings": "b", "jars": "d"}) == ["code", "jars"]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Waiting(False, False, None), WaitDecision.WAIT),
        (Waiting(False, True, None), WaitDecision.ORPHANED),
        (Waiting(True, True, 0.1), WaitDecision.STOP),
        (Waiting(False, True, 0.1), WaitDecision.WAIT),
        (Waiting(False, False, 11.0), WaitDecision.ABANDONED),
    ],
)
def test_a_spare_waits_as_long_as_somebody_may_still_need_it(seen: Waiting, expected: WaitDecision) -> None:
    assert decide_wait(seen) is expected


def test_no_spare_warms_up_before_something_is_active() -> None:
    nothing = StatusRow(epoch=0)
    assert not may_warm_up(Ledger(), nothing)
    assert may_warm_up(Ledger(), replace(nothing, generation=1))
