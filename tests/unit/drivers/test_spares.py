"""The spare driver without Spark: who may take it, how it is followed and found; its processes only look like one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from switchyard.airflow.spare_orders import find_unowned
from switchyard.drivers import processes
from switchyard.drivers.detached_process import DetachedProcess, start_detached
from switchyard.drivers.fingerprint import fingerprint_driver
from switchyard.drivers.hand_off import HandOff, describe_place
from switchyard.drivers.running_drivers import SpareProcess, end_spare, list_drivers, list_spares, stop_drivers
from switchyard.drivers.spare_claim import adopt_taken, end_spares, has_taken, take_spare
from switchyard.drivers.spares import (
    Fitness,
    Offer,
    Order,
    Patience,
    Waiting,
    choose_patience,
    find_differences,
    judge_offer,
    may_warm_up,
)
from switchyard.health import checks
from switchyard.health.checks import HealthInputs, Level
from switchyard.layout import Workspace
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap import transitions
from switchyard.swap.history import Ledger, StatusRow
from switchyard.swap.log_messages import open_history
from tests.waiting import eventually

FINGERPRINT = {"code": "a", "settings": "b"}
ORDER = Order(generation=7, kafkaProperties=Path("/kafka"), swapId="swap-7")

# Offers itself, and works on its order by waiting for its end.
STAND_IN = """
import sys, time
from pathlib import Path
from switchyard.drivers.hand_off import HandOff, describe_place
from switchyard.drivers.spares import Offer
import os
here = HandOff(Path(sys.argv[2]))
here.pulse.write_text(str(os.getpid()))
here.offer(Offer(pid=os.getpid(), session=os.getsid(0), place=describe_place(), fingerprint=here.read_fingerprint()))
print("ready", flush=True)
while here.accept() is None:
    time.sleep(0.01)
print("working", flush=True)
time.sleep(600)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@contextmanager
def stand_in(
    workspace: Workspace, fingerprint: Mapping[str, str] = FINGERPRINT, code: str = STAND_IN
) -> Iterator[tuple[HandOff, DetachedProcess]]:
    hand_off = HandOff.create(workspace, fingerprint)
    command = [sys.executable, "-c", code, "--spare", str(hand_off.folder)]
    started = start_detached(hand_off.folder, command, os.environ | {"PYTHONPATH": os.getcwd()})
    process = DetachedProcess(hand_off.folder, started.pid)
    try:
        if code == STAND_IN:
            eventually(lambda: hand_off.read_offer() or process.poll() is not None)
        yield hand_off, process
    finally:
        process.end()
        started.wait()


def test_an_offer_is_judged_by_its_machine_and_by_what_it_was_started_with() -> None:
    offer = Offer(pid=2, session=2, place="here", fingerprint=FINGERPRINT)
    assert judge_offer(offer, "here", FINGERPRINT) is Fitness.FIT
    assert judge_offer(offer, "there", {}) is Fitness.ELSEWHERE
    for other in ({}, {**FINGERPRINT, "code": "c"}, {**FINGERPRINT, "jars": "d"}):
        assert judge_offer(offer, "here", other) is Fitness.OUTDATED
    assert find_differences(FINGERPRINT, {"code": "c", "settings": "b", "jars": "d"}) == ["code", "jars"]


@pytest.mark.parametrize(
    ("seen", "patience"),
    [
        (Waiting(False, False, None), Patience.WAIT),
        (Waiting(False, True, None), Patience.ORPHANED),
        (Waiting(True, True, 0.1), Patience.STOP),
        (Waiting(False, True, 0.1), Patience.WAIT),
        (Waiting(False, False, 11.0), Patience.FORGOTTEN),
    ],
)
def test_a_spare_waits_as_long_as_somebody_may_still_need_it(seen: Waiting, patience: Patience) -> None:
    assert choose_patience(seen) is patience


def test_no_spare_warms_up_before_something_is_active() -> None:
    nothing = StatusRow(epoch=0)
    assert not may_warm_up(Ledger(), nothing)
    assert may_warm_up(Ledger(), replace(nothing, generation=1))


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
        taken.forget()
    assert not hand_off.folder.exists()
    assert said == []


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


@pytest.mark.parametrize("session", [0, 1, -1])
def test_an_offer_that_names_no_session_of_its_own_is_none(workspace: Workspace, session: int) -> None:
    """Session 0 would be every process that belongs to the system."""
    with pytest.raises(ValueError, match="greater than 1"):
        Offer(pid=2, session=session, place="here", fingerprint={})
    hand_off = HandOff.create(workspace, FINGERPRINT)
    good = Offer(pid=2, session=2, place=describe_place(), fingerprint=FINGERPRINT).model_dump_json()
    (hand_off.folder / "offer.json").write_text(good.replace('"session":2', f'"session":{session}'))
    assert hand_off.read_offer() is None


def test_the_sessions_of_the_system_have_no_members() -> None:
    assert processes.find_members([0, 1, -1]) == []


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


def test_down_ends_spares_with_everything_that_belongs_to_them(workspace: Workspace) -> None:
    with stand_in(workspace) as (hand_off, process):
        stop_drivers(workspace, 10)
        # The stand-in knows no signals; the shell around it writes down how it ended.
        assert eventually(process.poll) == 128 + signal.SIGTERM
        assert not hand_off.pulse.exists()
        assert list_spares(workspace) == []


@pytest.mark.parametrize(("command", "code"), [("exit 75", 75), ("kill -9 $$", 137), ("true", 0)])
def test_the_exit_code_of_a_kept_process_outlives_its_parent(workspace: Workspace, command: str, code: int) -> None:
    hand_off = HandOff.create(workspace, {})
    started = start_detached(hand_off.folder, ["/bin/sh", "-c", f"echo last words; {command}"], os.environ)
    process = DetachedProcess(hand_off.folder, started.pid)
    eventually(lambda: process.poll() is not None)
    assert (process.returncode, started.wait(), process.read_lines()[0]) == (code, code, "last words")


def test_a_polite_end_reaches_the_process_inside(workspace: Workspace) -> None:
    hand_off = HandOff.create(workspace, {})
    script = f"trap 'echo asked; exit 3' TERM; echo there; : {hand_off.folder}; while true; do sleep 0.05; done"
    started = start_detached(hand_off.folder, ["/bin/sh", "-c", script], os.environ)
    process = DetachedProcess(hand_off.folder, started.pid)
    assert eventually(process.read_lines) == ["there"]
    os.kill(started.pid, signal.SIGTERM)
    assert eventually(process.poll) == 3
    assert process.read_lines() == ["asked"]
    started.wait()


def test_a_log_that_maintenance_has_emptied_is_read_from_its_beginning(workspace: Workspace) -> None:
    hand_off = HandOff.create(workspace, {})
    output = hand_off.folder / "output.log"
    process = DetachedProcess(hand_off.folder, os.getpid())
    output.write_text("one\ntwo\nhal")
    assert process.read_lines() == ["one", "two"]
    output.write_text("new\n")
    assert process.read_lines() == ["new"]
    process.returncode = 0
    output.write_text("new\nend")
    assert process.read_lines() == ["end"]


def test_the_stamp_names_what_has_changed(tmp_path: Path) -> None:
    jar, code = tmp_path / "a.jar", tmp_path / "project" / "switchyard" / "a.py"
    code.parent.mkdir(parents=True)
    for path in (jar, code):
        path.write_text("text")
    conf = {"spark.driver.extraClassPath": f"{jar}:/not/there.jar", "spark.x": "1"}
    settings = Settings(root=str(tmp_path))

    def fingerprint(settings: Settings = settings, master: str = "local[2]", token_url: str = "") -> dict[str, str]:
        return fingerprint_driver(settings, master, conf, token_url, project=tmp_path / "project")

    first = fingerprint()
    assert find_differences(first, fingerprint()) == []
    assert find_differences(first, fingerprint(settings.model_copy(update={"trigger_seconds": 2.0}))) == ["settings"]
    assert find_differences(first, fingerprint(master="local[4]")) == ["Spark settings"]
    assert find_differences(first, fingerprint(token_url="https://id.example.org")) == ["token address"]
    jar.write_text("another text")
    assert find_differences(first, fingerprint()) == ["jars"]
    (code.parent / "b.py").write_text("")
    assert find_differences(first, fingerprint()) == ["code", "jars"]


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
    assert judge(replace(ready, silence=46 * second))[0] is Level.MENDING
    assert judge(ready, has_spare=False)[0] is Level.MENDING
    warming = replace(ready, is_ready=False, age=100 * second)
    assert judge(warming) == (Level.OK, "0 generations run here; a spare driver is warming up")
    assert judge(replace(warming, age=460 * second))[0] is Level.OK, "it rehearses, and shows life"
    assert judge(replace(warming, age=170 * second, silence=166 * second))[0] is Level.MENDING
    assert judge(replace(warming, age=466 * second))[0] is Level.MENDING, "no rehearsal takes so long"
    with stand_in(workspace) as (hand_off, process):
        found = list_spares(workspace)[0]
        assert hand_off.claim()
        assert not end_spare(workspace, found), "somebody is taking it"
        assert process.poll() is None
    with stand_in(workspace) as (_, process):
        assert end_spare(workspace, list_spares(workspace)[0])
        assert eventually(process.poll) == -signal.SIGKILL
