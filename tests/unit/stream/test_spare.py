"""A driver that waits for its order, in its loop. Before the first of its tiny jobs it needs no Spark to wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from switchyard.drivers.hand_off import HandOff
from switchyard.drivers.spares import Offer, Order
from switchyard.layout import Workspace
from switchyard.stream import spare
from tests.waiting import eventually

ORDER = Order(generation=7, kafkaProperties=Path("/kafka"))


@pytest.fixture
def hand_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandOff:
    monkeypatch.setattr(spare, "PID_FILE_SECONDS", 0.05)
    made = HandOff.create(Workspace(tmp_path), {})
    made.pulse.write_text("2")
    made.offer(Offer(pid=2, session=2, place="here", fingerprint={}))
    return made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def start_waiting(pool: ThreadPoolExecutor, hand_off: HandOff, stop: threading.Event) -> Future[Order | None]:
    return pool.submit(spare._poll_for_order, None, hand_off, stop)  # type: ignore[arg-type]


def test_it_shows_that_it_waits_and_takes_its_order(hand_off: HandOff, pool: ThreadPoolExecutor) -> None:
    first = hand_off.pulse.stat().st_mtime_ns
    with hand_off.owned():
        waiting = start_waiting(pool, hand_off, threading.Event())
        eventually(lambda: hand_off.pulse.stat().st_mtime_ns > first)
        assert hand_off.claim()
        hand_off.give(ORDER)
        assert waiting.result(10) == ORDER


def test_a_claim_protects_it_when_its_task_has_gone(hand_off: HandOff, pool: ThreadPoolExecutor) -> None:
    assert hand_off.claim()
    first = hand_off.pulse.stat().st_mtime_ns
    waiting = start_waiting(pool, hand_off, threading.Event())
    eventually(lambda: hand_off.pulse.stat().st_mtime_ns > first)
    hand_off.give(ORDER)
    assert waiting.result(10) == ORDER


def test_it_ends_with_the_task_that_started_it(hand_off: HandOff, pool: ThreadPoolExecutor) -> None:
    with hand_off.owned():
        waiting = start_waiting(pool, hand_off, threading.Event())
        assert not waiting.done()
    assert waiting.result(10) is None


def test_it_ends_when_it_is_asked_to(hand_off: HandOff, pool: ThreadPoolExecutor) -> None:
    stop = threading.Event()
    with hand_off.owned():
        waiting = start_waiting(pool, hand_off, stop)
        stop.set()
        assert waiting.result(10) is None
