"""Which spare a swap may take, and how its driver is followed from then on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from switchyard.drivers.hand_off import HandOff, describe_place
from switchyard.drivers.running_drivers import list_drivers, list_spares
from switchyard.drivers.spare_claim import adopt_taken, end_spares, has_taken, take_spare
from switchyard.drivers.spares import (
    Offer,
)
from switchyard.layout import Workspace
from tests.unit.drivers.stand_in import FINGERPRINT, ORDER, stand_in
from tests.waiting import eventually


def test_a_taken_spare_is_followed_from_its_order_on_and_counts_as_the_generations_driver(workspace: Workspace) -> None:
    said: list[str] = []
    with stand_in(workspace) as (hand_off, process):
        assert eventually(process.read_lines) == ["ready"]
        assert [(spare.name, spare.is_ready) for spare in list_spares(workspace)] == [(hand_off.folder.name, True)]
        assert not has_taken(workspace, "swap-7")
        assert take_spare(workspace, ORDER, FINGERPRINT, said.append) is not None
        assert has_taken(workspace, "swap-7")
        assert adopt_taken(workspace, "swap-8") is None
        taken = adopt_taken(workspace, "swap-7")
        assert taken is not None
        assert adopt_taken(workspace, "swap-7") is None, "a driver has one owner"
        seen: list[str] = []
        eventually(lambda: seen.extend(taken.read_lines()) or "working" in seen)
        assert seen == ["ready", "working"]
        assert taken.poll() is None
        assert [(driver.session, driver.generation) for driver in list_drivers(workspace)] == [(process.pid, 7)]
        assert list_drivers(workspace)[0].age < timedelta(seconds=30)
        assert list_spares(workspace) == []
        assert take_spare(workspace, ORDER, FINGERPRINT, said.append) is None
        assert end_spares(workspace) == []
        os.killpg(process.pid, signal.SIGKILL)
        assert eventually(taken.poll) == -signal.SIGKILL
        hand_off.remove()
    assert not hand_off.folder.exists()
    assert said == []


def test_a_spare_that_is_outdated_frozen_or_dead_is_passed_by_within_seconds(workspace: Workspace) -> None:
    said: list[str] = []
    with stand_in(workspace) as (_, outdated):
        assert take_spare(workspace, ORDER, {**FINGERPRINT, "code": "c"}, said.append) is None
        assert eventually(outdated.poll) == -signal.SIGKILL
    with stand_in(workspace) as (hand_off, frozen):
        offer = hand_off.read_offer()
        assert offer is not None
        os.kill(offer.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert take_spare(workspace, ORDER, FINGERPRINT, said.append) is None
        assert time.monotonic() - began < 5
        assert eventually(frozen.poll) == -signal.SIGKILL
        assert hand_off.accept() is None, "an order that was withdrawn must never be carried out"
    with stand_in(workspace) as (_, dead):
        os.killpg(dead.pid, signal.SIGKILL)
        eventually(dead.poll)
        assert take_spare(workspace, ORDER, FINGERPRINT, said.append) is None
    assert said == [
        "The spare driver was started with something else (code); it is ended and replaced.",
        "The spare driver did not answer; it is ended and replaced.",
        "The spare driver did not answer; it is ended and replaced.",
    ]


def test_a_session_that_is_not_the_spares_own_is_never_ended(workspace: Workspace) -> None:
    hand_off = HandOff.create(workspace, {"code": "old"})
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        offer = Offer(pid=bystander.pid, session=bystander.pid, place=describe_place(), fingerprint={"code": "old"})
        hand_off.offer(offer)
        assert take_spare(workspace, ORDER, FINGERPRINT, lambda text: None) is None
        assert hand_off.is_claimed
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_spare_of_another_machine_is_left_alone(workspace: Workspace) -> None:
    hand_off = HandOff.create(workspace, FINGERPRINT)
    hand_off.offer(Offer(pid=os.getpid(), session=os.getpid(), place="elsewhere", fingerprint=FINGERPRINT))
    assert take_spare(workspace, ORDER, FINGERPRINT, pytest.fail) is None
    assert end_spares(workspace) == []
    assert hand_off.read_offer() is not None
