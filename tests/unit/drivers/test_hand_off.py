"""The folder in which a spare offers itself: what is an offer, and who looks after the spare."""

from __future__ import annotations

import subprocess
import sys

import pytest

from switchyard.drivers.hand_off import HandOff, describe_place
from switchyard.drivers.spares import (
    Offer,
)
from switchyard.layout import Workspace
from tests.unit.drivers.stand_in import FINGERPRINT
from tests.waiting import eventually


@pytest.mark.parametrize("session", [0, 1, -1])
def test_an_offer_that_names_no_separate_session_is_none(workspace: Workspace, session: int) -> None:
    """Session 0 would be every process that belongs to the system."""
    with pytest.raises(ValueError, match="greater than 1"):
        Offer(pid=2, session=session, place="here", fingerprint={})
    hand_off = HandOff.create(workspace, FINGERPRINT)
    good = Offer(pid=2, session=2, place=describe_place(), fingerprint=FINGERPRINT).model_dump_json()
    (hand_off.folder / "offer.json").write_text(good.replace('"session":2', f'"session":{session}'))
    assert hand_off.read_offer() is None


def test_a_spare_knows_whether_somebody_looks_after_it(workspace: Workspace) -> None:
    hand_off = HandOff.create(workspace, FINGERPRINT)
    assert hand_off.is_orphaned()
    code = f"""
import time
from pathlib import Path
from switchyard.drivers.hand_off import HandOff, describe_place
with HandOff(Path({str(hand_off.folder)!r})).owned():
    time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", code])
    try:
        eventually(lambda: not hand_off.is_orphaned())
        owner.kill()
        eventually(hand_off.is_orphaned)
    finally:
        owner.kill()
        owner.wait()
