"""A spare driver as a real process: taken, it is the driver of a generation; dead or frozen, it is in nobody's way."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from switchyard.drivers.detached_process import DetachedProcess, start_detached
from switchyard.drivers.hand_off import HandOff
from switchyard.drivers.java import find_java
from switchyard.drivers.jobs import submit_command
from switchyard.drivers.running_drivers import list_drivers, list_spares, stop_drivers
from switchyard.drivers.spare_claim import take_spare
from switchyard.drivers.spares import Order
from switchyard.drivers.submission import submit_environment
from switchyard.kafka.client_settings import write_properties
from switchyard.kafka.topics import TopicReader
from switchyard.layout import PROJECT, Layout
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.stream import rehearsal
from switchyard.swap.generations import keep_spec, resolve_spec
from switchyard.tables.progress import newest_progress
from switchyard.tables.status import read_status
from tests.events import draw_events
from tests.stream.driver import STOPPED, assert_clean, consumed
from tests.topics import Topics
from tests.waiting import eventually

FINGERPRINT = {"settings": "as they are"}
SPARKS_INFO = re.compile(r"^[\d/]+ [\d:]+ INFO ", re.M)


@pytest.fixture
def settings(layout: Layout) -> Settings:
    return Settings(root=layout.root, min_dwell_seconds=0, driver_memory="1g")


@contextmanager
def warm_spare(settings: Settings, kafka: dict[str, str]) -> Iterator[tuple[HandOff, DetachedProcess]]:
    """A spare that has offered itself, looked after by this process."""
    properties = settings.workspace.kafka_properties(0, os.getpid())
    write_properties(properties, kafka)
    hand_off = HandOff.create(settings.workspace, FINGERPRINT)
    environment = {**os.environ, **submit_environment(os.environ, Path(sys.executable), find_java().path)}
    environment |= {"PYTHONPATH": str(PROJECT), "SWITCHYARD_ROOT": settings.root, "SWITCHYARD_MIN_DWELL_SECONDS": "0"}
    given = ["--kafka-properties", str(properties)]
    with hand_off.owned():
        command = submit_command(settings, "spare_driver.py", ["--spare", str(hand_off.folder), *given])
        started = start_detached(hand_off.folder, command, environment)
        process = DetachedProcess(hand_off.folder, started.pid)
        try:
            eventually(lambda: hand_off.read_offer() or process.poll() is not None)
            assert process.poll() is None, "\n".join(process.read_lines())
            assert not properties.exists()
            assert list(hand_off.folder.glob("rehearsal-*")) == []
            yield hand_off, process
        finally:
            process.end()
            started.wait()


def order_of(settings: Settings, topics: Topics) -> Order:
    properties = settings.workspace.kafka_properties(1, os.getpid())
    write_properties(properties, topics.kafka)
    with TopicReader(topics.kafka) as reader:
        spec = resolve_spec(reader, Target(topics.users, topics.accounts, "left"), "earliest", generation=1)
        keep_spec(settings.layout, spec)
    return Order(generation=1, kafkaProperties=properties)


def test_a_spare_becomes_the_driver_of_a_generation_and_a_frozen_one_is_passed_by(
    spark: SparkSession, settings: Settings, topics: Topics
) -> None:
    topics.send(draw_events(seed=51, count=100))
    order, said = order_of(settings, topics), list[str]()
    with warm_spare(settings, topics.kafka) as (hand_off, process):
        assert [spare.is_ready for spare in list_spares(settings.workspace)] == [True]
        assert list_drivers(settings.workspace) == []
        taken = take_spare(settings.workspace, order, FINGERPRINT, said.append)
        assert taken is not None
        assert taken.folder == hand_off.folder
        assert take_spare(settings.workspace, order, FINGERPRINT, said.append) is None
        eventually(lambda: (status := read_status(settings.layout)) and status.generation == 1, every_seconds=0.05)
        assert [driver.generation for driver in list_drivers(settings.workspace)] == [1]
        assert list_spares(settings.workspace) == []
        topics.send(draw_events(seed=52, count=50))
        eventually(lambda: consumed(settings.layout, 1) >= 150)
        os.kill(int(settings.workspace.driver_pid(1).read_text()), signal.SIGTERM)
        eventually(lambda: process.poll() == STOPPED)
        before, after = "\n".join(process.read_lines()).split("it works for generation 1 now")
        assert "240 records equal the batch join" in before, "with nothing active, it rehearses on made-up records"
        assert not SPARKS_INFO.search(after)
    progress = newest_progress(settings.layout, 1)
    assert progress is not None
    assert progress.attempt == 1
    assert_clean(spark, settings)
    with warm_spare(settings, topics.kafka) as (hand_off, process):
        rehearsed = re.search(r"rows of (\d+) records equal the batch join", "\n".join(process.read_lines()))
        assert rehearsed is not None
        assert int(rehearsed[1]) == 150, "it rehearses on the newest records of the active topics, here all of them"
        offer = hand_off.read_offer()
        assert offer is not None
        os.kill(offer.pid, signal.SIGSTOP)
        assert take_spare(settings.workspace, order, FINGERPRINT, said.append) is None
        assert eventually(process.poll) == -signal.SIGKILL
        assert (hand_off.folder / "withdrawn.json").exists()
    assert said == ["The spare driver did not answer; it is ended and replaced."]
    stop_drivers(settings.workspace, 5)


def test_a_rehearsal_shows_life_after_each_batch_and_while_the_data_gate_compares(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a spare that shows none would be taken for one that hangs."""
    signs: list[float] = []
    streamed: list[int] = []
    examine = rehearsal.examine

    def examine_slowly(*given: Any) -> Any:
        streamed.append(len(signs))
        eventually(lambda: len(signs) >= streamed[0] + 3, 30)
        return examine(*given)

    monkeypatch.setattr(rehearsal, "examine", examine_slowly)
    rehearsal.rehearse(spark, settings, tmp_path, {}, lambda: signs.append(time.monotonic()))
    begin_and_end = 2
    assert streamed[0] >= begin_and_end + rehearsal.BATCHES - 1
