"""The driver as a real process: killed at every dangerous point, replaced, stopped."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.local.loopback import pick_free_port
from switchyard.settings import Settings
from switchyard.stream.session import METRICS_PATH
from switchyard.swap.commands import Answer, CommandHandler
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.reconcile import reconcile, retire_now
from switchyard.tables import store
from switchyard.tables.progress import newest_progress
from switchyard.tables.status import read_status
from tests.events import draw_events
from tests.spark_metrics import SPARK_METRICS
from tests.stream.driver import FENCED, KILLED, STOPPED, ask, assert_clean, running_driver
from tests.topics import Topics
from tests.waiting import eventually

SLOW_GATE_JOB = Path(__file__).with_name("slow_gate_job.py")
CRASH_POINTS = (
    "applied:before",
    "users:before",
    "accounts:written",
    "joined:before",
    "joined:after",
    "progress:before",
)


@pytest.fixture
def settings(layout: Layout) -> Settings:
    return Settings(root=layout.root, max_offsets_per_trigger=60, linger_seconds=1, min_dwell_seconds=0)


def events_of(layout: Layout, swap_id: str) -> list[Event]:
    return [entry.event for entry in HistoryStore(layout).ledger().entries if entry.swapId == swap_id]


def test_killed_at_every_point_nothing_is_lost_or_double(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path
) -> None:
    events = draw_events(seed=11, count=150 * (len(CRASH_POINTS) + 1))
    for number, crash in enumerate(CRASH_POINTS):
        topics.send(events[number * 150 : (number + 1) * 150])
        with running_driver(settings, topics, tmp_path, crash=crash) as driver:
            assert driver.wait() == KILLED, driver.tail()
    topics.send(events[-150:])
    with running_driver(settings, topics, tmp_path, join_type="left") as driver:
        eventually(lambda: driver.has_read(len(events)))
        driver.ask_to_stop()
        assert driver.wait() == STOPPED
    progress = newest_progress(settings.layout, 1)
    assert progress is not None
    assert progress.attempt == len(CRASH_POINTS) + 1
    assert events_of(settings.layout, "by-hand-1") == [Event.REQUESTED, Event.STARTING, Event.READY, Event.APPLIED]
    assert_clean(spark, settings)


def test_second_driver_of_a_generation_fences_the_first_out(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path
) -> None:
    """The first one has a slow data gate: it must show life meanwhile, or its task would take it for one that hangs."""
    events, life = draw_events(seed=12, count=300), tmp_path / "life"
    topics.send(events[:100])
    slow = {"LIFE_FILE": str(life)}
    with running_driver(settings, topics, tmp_path, join_type="natural", job=SLOW_GATE_JOB, environment=slow) as first:
        eventually(lambda: first.has_read(100) and life.exists())
        assert int(life.read_text()) > 2
        with running_driver(settings, topics, tmp_path, join_type="natural") as second:
            topics.send(events[100:200])
            assert first.wait() == FENCED, first.tail()
            topics.send(events[200:])
            eventually(lambda: second.has_read(300))
            second.ask_to_stop()
            assert second.wait() == STOPPED
    assert_clean(spark, settings)


def generation_of(answer: Answer) -> int:
    assert answer.request is not None, answer
    return answer.request.generation


def served_metrics(port: int) -> set[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{METRICS_PATH}", timeout=10) as answer:
        return set(re.findall(r"^(\w+)\{", answer.read().decode(), re.MULTILINE))


def listening_addresses(port: int) -> set[str]:
    """Where this machine takes connections to a port, as the kernel says it."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    places = [line[1].split(":") for line in lines if line[3] == "0A"]
    return {str(ip_address(bytes.fromhex(at[-8:])[::-1])) for at, number in places if int(number, 16) == port}


def test_newer_generation_takes_over_and_the_older_one_retires_and_resumes(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path
) -> None:
    layout = settings.layout
    topics.send(draw_events(seed=13, count=100))
    assert generation_of(ask(settings, topics, "first", "left", "earliest")) == 1
    port = pick_free_port()
    shown = {"SWITCHYARD_SPARK_UI_PORT": str(port)}
    with running_driver(settings, topics, tmp_path, generation=1, join_type="left", environment=shown) as old:
        eventually(lambda: (status := read_status(layout)) and status.generation == 1)
        eventually(lambda: set(SPARK_METRICS) <= served_metrics(port))
        assert listening_addresses(port) == {"127.0.0.1"}
        assert generation_of(ask(settings, topics, "second", "asof", "earliest")) == 2
        with running_driver(settings, topics, tmp_path, generation=2, join_type="asof") as new:
            eventually(lambda: (status := read_status(layout)) and status.generation == 2)
            assert old.wait() == 0, old.tail()
            topics.send(draw_events(seed=14, count=50))
            eventually(lambda: new.has_read(150))
            new.ask_to_stop()
            assert new.wait() == STOPPED
    whole_life = [Event.REQUESTED, Event.STARTING, Event.READY, Event.APPLIED, Event.LINGERING, Event.RETIRED]
    assert events_of(layout, "first") == whole_life
    assert events_of(layout, "second") == whole_life[:4]
    assert_clean(spark, settings, 1)
    assert_clean(spark, settings, 2)
    assert generation_of(ask(settings, topics, "third", "left", "resume")) == 1
    assert generation_of(ask(settings, topics, "third", "left", "resume")) == 1
    with running_driver(settings, topics, tmp_path, generation=1, join_type="left") as resumed:
        eventually(lambda: (status := read_status(layout)) and status.generation == 1)
        eventually(lambda: resumed.has_read(150))
        resumed.ask_to_stop()
        assert resumed.wait() == STOPPED
    ready = [entry for entry in HistoryStore(layout).ledger().entries if entry.event is Event.READY]
    assert [entry.swapId for entry in ready] == ["first", "second", "third"]
    assert all("equal the batch join" in entry.detail for entry in ready)
    assert_clean(spark, settings, 1)


def test_kept_generations_go_on_and_are_taken_back_at_once_and_retire_in_time_or_by_hand(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path
) -> None:
    """The first two are kept although none may linger: the first one for good, the second one for five seconds."""
    layout = settings.layout
    kept = {"SWITCHYARD_KEEP_GENERATIONS": "true", "SWITCHYARD_MAX_LINGER_GENERATIONS": "0"}
    for_good, a_while = ({**kept, "SWITCHYARD_RETIRE_AFTER_SECONDS": seconds} for seconds in ("0", "5"))
    topics.send(draw_events(seed=17, count=100))
    ask(settings, topics, "first", "left", "earliest")
    with running_driver(settings, topics, tmp_path, generation=1, join_type="left", environment=for_good) as first:
        eventually(lambda: is_active(layout, 1))
        ask(settings, topics, "second", "asof", "earliest")
        with running_driver(settings, topics, tmp_path, generation=2, join_type="asof", environment=a_while) as second:
            eventually(lambda: is_active(layout, 2))
            topics.send(draw_events(seed=18, count=50))
            eventually(lambda: first.has_read(150) and second.has_read(150))
            with TopicReader(topics.kafka) as reader:
                CommandHandler(settings, reader).roll_back("rollback-a", "test")
            eventually(lambda: is_active(layout, 1))
            assert second.wait() == 0, second.tail()
        ask(settings, topics, "third", "inner", "earliest")
        with running_driver(settings, topics, tmp_path, generation=3, join_type="inner", environment=for_good) as third:
            eventually(lambda: is_active(layout, 3))
            topics.send(draw_events(seed=19, count=50))
            eventually(lambda: first.has_read(200) and third.has_read(200))
            retire_now(settings, HistoryStore(layout), 1, "no longer needed")
            assert first.wait() == 0, first.tail()
            third.ask_to_stop()
            assert third.wait() == STOPPED
    entries = HistoryStore(layout).ledger().entries
    (ready,) = [entry for entry in entries if (entry.swapId, entry.event) == ("rollback-a", Event.READY)]
    assert (ready.generation, ready.detail) == (1, "it was still running")
    began, ended = [entry.at for entry in entries if entry.swapId == "second"][-2:]
    assert events_of(layout, "second")[-2:] == [Event.LINGERING, Event.RETIRED]
    assert ended - began >= timedelta(seconds=5)
    last = entries[-1]
    assert (last.swapId, last.event, last.detail) == ("rollback-a", Event.RETIRED, "no longer needed")
    for generation in (1, 2, 3):
        progress = newest_progress(layout, generation)
        assert progress is not None
        assert progress.attempt == 1
        assert_clean(spark, settings, generation)


def is_active(layout: Layout, generation: int) -> bool:
    status = read_status(layout)
    return status is not None and status.generation == generation


def test_a_generation_that_never_gets_ready_fails_at_its_deadline_and_leaves_nothing(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path
) -> None:
    layout = settings.layout
    hurried = settings.model_copy(update={"ready_deadline_seconds": 20})
    topics.send(draw_events(seed=15, count=100))
    ask(settings, topics, "first", "left", "earliest")
    with running_driver(settings, topics, tmp_path, generation=1, join_type="left") as active:
        eventually(lambda: (status := read_status(layout)) and status.generation == 1)
        ask(hurried, topics, "hung", "asof", "earliest")
        with running_driver(settings, topics, tmp_path, generation=2, join_type="asof") as hung:
            pid = settings.workspace.driver_pid(2)
            stopped = int(eventually(lambda: pid.exists() and pid.read_text()))
            os.kill(stopped, signal.SIGSTOP)
            eventually(lambda: Event.FAILED in events_of(layout, "hung"))
            assert "deadline" in HistoryStore(layout).ledger().outcomes["hung"].detail
            reconcile(settings, HistoryStore(layout))
            assert HistoryStore(layout).ledger().is_retired(2)
            # As if its query had written once more between the removal and its end.
            Path(layout.checkpoint(2), "offsets").mkdir(parents=True)
            os.kill(stopped, signal.SIGCONT)
            assert hung.wait() in (0, FENCED), hung.tail()
        assert events_of(layout, "hung")[-2:] == [Event.FAILED, Event.RETIRED]
        assert not Path(layout.checkpoint(2)).exists()
        for name in ("users", "accounts", "joined"):
            assert store.read_rows(layout, name, generation=2) == []
        soon = {"SWITCHYARD_STUCK_SECONDS": "4"}
        for generation, crash, waits in ((3, "stuck:", "100 records wait"), (4, "stuck:gate", "the swap is not ready")):
            ask(settings, topics, crash, "inner", "earliest")
            with running_driver(
                settings, topics, tmp_path, generation=generation, join_type="inner", crash=crash, environment=soon
            ) as stuck:
                assert stuck.wait() == 1, stuck.tail()
            failed = HistoryStore(layout).ledger().outcomes[crash]
            assert failed.event is Event.FAILED
            assert re.fullmatch(rf"no progress: {waits}, and for \d+ s .*; then send it again", failed.detail)
        topics.send(draw_events(seed=16, count=50))
        eventually(lambda: active.has_read(150))
        active.ask_to_stop()
        assert active.wait() == STOPPED
    assert_clean(spark, settings, 1)
