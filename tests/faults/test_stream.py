"""What can happen to a running stream, on real processes. Each test checks a row of the table in docs/operations.md,
"When something breaks": nothing lost, nothing double, one active generation, a reason in `logs`.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import ensure_topics
from switchyard.layout import Layout
from switchyard.local.broker import Broker
from switchyard.settings import Settings
from switchyard.swap.control_loop import run_round
from switchyard.swap.history import SETTLING, Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.progress import newest_progress
from switchyard.tables.stable_names import newest_rows
from switchyard.tables.status import read_status
from tests.events import FIRST_MS, draw_events
from tests.stream.driver import FENCED, STOPPED, Driver, ask, assert_clean, consumed, running_driver
from tests.topics import Topics
from tests.waiting import eventually

FAILED = 1
HOT_EVENTS = 100_000
HOT_AGAIN = 10
"""Later events of the same person on the other side: a million rows in one batch of few records"""
OUTAGE_SECONDS = float(os.environ.get("FAULT_OUTAGE_SECONDS") or 60)
JUMPING_JOB = Path(__file__).with_name("jumping_job.py")


@pytest.fixture
def settings(layout: Layout) -> Settings:
    return Settings(root=layout.root, linger_seconds=1, min_dwell_seconds=0)


def told(layout: Layout, words: str) -> list[store.Row]:
    """Lines that contain some words, in order."""
    lines = sorted(store.read_rows(layout, "logs"), key=lambda row: row["ts"])
    return [row for row in lines if words in row["msg"]]


def make_topics(bootstrap: str, partitions: int = 2) -> Topics:
    name = uuid.uuid4().hex[:8]
    topics = Topics(bootstrap, f"users-{name}", f"accounts-{name}")
    topics.create(partitions)
    return topics


def stop(driver: Driver) -> None:
    driver.ask_to_stop()
    assert driver.wait() == STOPPED, driver.tail()


@dataclass
class Outage:
    """A driver whose broker is frozen, then killed, while other tests run."""

    broker: Broker
    topics: Topics
    settings: Settings
    driver: Driver
    thawed: threading.Timer
    attempt: int


@pytest.fixture(scope="module", autouse=True)
def outage(own_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """Begins with the first test of this file and is looked at by the last: most of its time is waiting."""
    folder = tmp_path_factory.mktemp("outage")
    settings = Settings(root=str(folder / "root"))
    topics = make_topics(own_broker.bootstrap)
    topics.send(draw_events(seed=1, count=100))
    # Less than the outage takes: what is active waits for its broker all the same.
    patience = {"SWITCHYARD_STUCK_SECONDS": "30"}
    with running_driver(settings, topics, folder, environment=patience) as driver:
        eventually(lambda: status_generation(settings.layout) == 1)
        before = newest_progress(settings.layout, 1)
        assert before is not None
        pid = int(own_broker.pid_file.read_text())
        os.kill(pid, signal.SIGSTOP)
        thawed = threading.Timer(OUTAGE_SECONDS, os.kill, (pid, signal.SIGCONT))
        thawed.start()
        yield Outage(own_broker, topics, settings, driver, thawed, before.attempt)
        thawed.join()


def test_drift_new_partitions_a_hot_key_and_a_deleted_topic(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path, seed: int
) -> None:
    """In one driver's life: all but the last leave it alone."""
    layout, admin = settings.layout, AdminClient(topics.kafka)
    draw = random.Random(seed)
    topics.send(draw_events(seed, 200))
    with running_driver(settings, topics, tmp_path) as driver:
        eventually(lambda: driver.has_read(200))
        drifted = [
            {"userId": f"person-{n}", "nickname": "new", "age": draw.choice(["30", 3.5, [1]])} for n in range(30)
        ]
        widened = [{"userId": f"person-{n}", "name": "n", "tags": {"a": [n]}} for n in range(30)]
        topics.send([("user", 0, FIRST_MS, fields) for fields in drifted + widened])
        eventually(lambda: driver.has_read(260))
        rejects = store.read_rows(layout, "rejects")
        assert {row["reason"].split()[0] for row in rejects} == {"age"}
        assert len(rejects) == len(drifted)

        for topic in (topics.users, topics.accounts):
            admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
        topics.send([(side, partition + 2, ts, fields) for side, partition, ts, fields in draw_events(seed + 1, 100)])
        eventually(lambda: driver.has_read(360))
        assert set(store.read_arrow(layout, "users", generation=1)["partition"].to_pylist()) == {0, 1, 2, 3}

        hot = [("account", 0, FIRST_MS + n, {"userId": "hot", "balance": float(n)}) for n in range(HOT_EVENTS)]
        topics.send([("user", 0, FIRST_MS, {"userId": "hot", "name": "first"}), *hot])
        eventually(lambda: driver.has_read(361 + HOT_EVENTS), 120)
        topics.send([("user", 1, FIRST_MS + n, {"userId": "hot", "name": "again"}) for n in range(HOT_AGAIN)])
        eventually(lambda: driver.has_read(361 + HOT_EVENTS + HOT_AGAIN), 180)
        admin.delete_topics([topics.users])[topics.users].result(30)
        assert driver.wait() in (FAILED, 2), driver.tail()
    assert_clean(spark, settings)
    assert store.read_arrow(layout, "joined", generation=1).num_rows > (1 + HOT_AGAIN) * HOT_EVENTS
    reason = told(layout, "failed and is started again")[-1]
    assert (reason["level"], reason["generation"]) == ("ERROR", 1)
    assert "not exist" in reason["msg"]


def test_a_full_disk_stops_the_stream_and_it_goes_on_when_there_is_room(
    spark: SparkSession, topics: Topics, tmp_path: Path, small_disk: Path, seed: int
) -> None:
    settings = Settings(root=str(small_disk / "root"))
    layout, ballast = settings.layout, small_disk / "ballast"
    topics.send(draw_events(seed, 200))
    with running_driver(settings, topics, tmp_path) as driver:
        eventually(lambda: driver.has_read(200))
        fill(ballast)
        topics.send(draw_events(seed + 1, 2000))
        eventually(lambda: "is full" in driver.tail(), 90)
        assert driver.process.poll() is None, "it waits until the reason can be written"
        assert consumed(layout, 1) < 2200
        assert_clean(spark, settings)
        ballast.unlink()
        assert driver.wait() == FAILED, driver.tail()
    reason = told(layout, "failed and is started again")[-1]
    assert "disk under tables and checkpoints is full" in reason["msg"]
    with running_driver(settings, topics, tmp_path) as driver:
        eventually(lambda: driver.has_read(2200))
        stop(driver)
    assert_clean(spark, settings)


def fill(path: Path) -> None:
    """To the last byte, also of the small files that somebody removes meanwhile."""
    with path.open("wb", buffering=0) as ballast:
        for size in (2**20, 2**12, 1):
            try:
                while ballast.write(b"\0" * size) == size:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def test_what_cannot_go_on_says_why_and_leaves_the_tables_alone(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path, seed: int
) -> None:
    """A damaged checkpoint, records that Kafka has deleted, a topic that was created again."""
    layout, admin = settings.layout, AdminClient(topics.kafka)
    topics.send(draw_events(seed, 300))
    with running_driver(settings, topics, tmp_path) as driver:
        eventually(lambda: driver.has_read(300) and status_generation(layout) == 1)
        stop(driver)
    checkpoint = Path(layout.checkpoint(1))
    kept = shutil.copytree(checkpoint, tmp_path / "kept")

    def expect(reason: str) -> None:
        with running_driver(settings, topics, tmp_path) as driver:
            assert driver.wait() in (FAILED, 2), driver.tail()
        said = told(layout, "failed and is started again")[-1]["msg"]
        assert reason in said, (said, driver.tail())

    def restore() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.copytree(kept, checkpoint)

    newest = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    os.truncate(checkpoint / "offsets" / str(newest), 7)
    expect("the checkpoint is damaged")
    shutil.rmtree(checkpoint)
    expect("the checkpoint is damaged")
    restore()
    os.truncate(checkpoint / "commits" / str(newest), 0)
    expect("its checkpoint is damaged")
    restore()
    # A snapshot alone would be made again from older ones and the changes since.
    for path in checkpoint.glob("state/0/[0-9]*/*.*"):
        os.truncate(path, path.stat().st_size // 2)
    topics.send(draw_events(seed + 1, 50))
    expect("its checkpoint is damaged")
    restore()
    progress = newest_progress(layout, 1)
    assert progress is not None
    assert consumed(layout, 1) == 300
    ends = json.loads(progress.endOffsets or "{}")[topics.users]
    passed = TopicPartition(topics.users, 0, ends["0"] + 5)
    admin.delete_records([passed])[passed].result(30)
    expect(f"{topics.users}, partition 0, offsets {ends['0']} to {ends['0'] + 4}")
    admin.delete_topics([topics.users])[topics.users].result(30)
    eventually(lambda: topics.users not in AdminClient(topics.kafka).list_topics(timeout=10).topics)
    topics.create(2)
    topics.send(draw_events(seed + 2, 900))
    expect(f"{topics.users} was deleted and created again")
    assert status_generation(layout) == 1
    assert_clean(spark, settings)
    assert newest_progress(layout, 1) == progress, "no batch was committed by any of them"


def status_generation(layout: Layout) -> int | None:
    status = read_status(layout)
    return status.generation if status else None


def test_a_clock_that_jumps_undoes_nothing_and_hides_nothing(
    spark: SparkSession, layout: Layout, topics: Topics, tmp_path: Path, seed: int
) -> None:
    settings = Settings(root=layout.root, linger_seconds=20, probation_seconds=10, min_dwell_seconds=0)
    shift = tmp_path / "shift"

    def put(seconds: int) -> None:
        draft = tmp_path / "draft"
        draft.write_text(str(seconds))
        draft.rename(shift)

    def start(generation: int, join_type: str) -> Driver:
        environment = {"JUMP_FILE": str(shift)}
        return drivers.enter_context(
            running_driver(
                settings,
                topics,
                tmp_path,
                generation=generation,
                join_type=join_type,
                job=JUMPING_JOB,
                environment=environment,
            )
        )

    def jump(seconds: int, records: int) -> None:
        """Everybody's clock at once; then records come, and readers see them."""
        put(seconds)
        topics.send(draw_events(seed + records, 50))
        eventually(lambda: new.has_read(records))
        eventually(lambda: told(layout, f"the clock has jumped by {seconds or -3600} s"))

    put(0)
    topics.send(draw_events(seed, 100))
    with ExitStack() as drivers:
        ask(settings, topics, "first", "left", "earliest")
        old = start(1, "left")
        eventually(lambda: status_generation(layout) == 1)
        ask(settings, topics, "second", "asof", "earliest")
        new = start(2, "asof")
        eventually(lambda: status_generation(layout) == 2)
        jump(3600, 150)
        assert old.wait() == 0, "its time to linger is over by the clock, and its successor was seen"
        jump(0, 200)
        progress = newest_progress(layout, 2)
        assert progress is not None
        assert (progress.attempt, consumed(layout, 2)) == (1, 200)
        assert len(newest_rows(layout, "final_ui", 1000)) == store.read_arrow(layout, "accounts", generation=2).num_rows
        stop(new)
    ids = {entry.swapId for entry in HistoryStore(layout).ledger().entries}
    assert ids == {"first", "second"}
    assert_clean(spark, settings, 2)


def outcomes(layout: Layout) -> list[Event]:
    return [entry.event for entry in HistoryStore(layout).ledger().entries if entry.event in SETTLING]


def test_everything_asked_for_twice_at_the_same_instant_happens_once(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path, seed: int
) -> None:
    layout = settings.layout
    settings = settings.model_copy(
        update={
            "control_topic": f"control-{uuid.uuid4().hex[:8]}",
            "users_topic": topics.users,
            "accounts_topic": topics.accounts,
        }
    )
    ensure_topics(topics.kafka, [settings.control_topic], 2)
    value = json.dumps({"id": "once", "joinType": "inner", "start": "earliest"}).encode()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: publish(topics.kafka, settings.control_topic, value, "cli:test"), range(2)))
        rounds = list(pool.map(lambda _: run_round(settings, topics.kafka), range(4)))
    assert {found.run.run_id for found in rounds if found.run} == {"generation-1"}
    ledger = HistoryStore(layout).ledger()
    assert [request.swapId for request in ledger.requests] == ["once"]
    assert len(store.read_rows(layout, "control_raw")) == 2

    topics.send(draw_events(seed, 200))
    with (
        running_driver(settings, topics, tmp_path, join_type="inner") as one,
        running_driver(settings, topics, tmp_path, join_type="inner") as other,
    ):
        eventually(lambda: FENCED in (one.process.poll(), other.process.poll()), 120)
        survivor = other if one.process.poll() == FENCED else one
        topics.send(draw_events(seed + 1, 100))
        eventually(lambda: survivor.has_read(300))
        eventually(lambda: outcomes(layout))
        stop(survivor)
    assert outcomes(layout) == [Event.APPLIED]
    assert_clean(spark, settings)


def test_a_broker_that_hangs_and_one_that_is_down_are_waited_for(spark: SparkSession, outage: Outage) -> None:
    """The last of this file, because the outage began with the first."""
    layout, topics, driver = outage.settings.layout, outage.topics, outage.driver
    outage.thawed.join()
    topics.send(draw_events(seed=2, count=100))
    eventually(lambda: driver.has_read(200))
    assert [row["level"] for row in told(layout, "the broker does not answer")] == ["WARNING"]
    eventually(lambda: len(told(layout, "the broker answers again")) == 1)
    pid = int(outage.broker.pid_file.read_text())
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(told(layout, "the broker does not answer")) == 2)
    outage.broker.start()
    outage.broker.wait_until_ready(60)
    topics.send(draw_events(seed=3, count=100))
    eventually(lambda: driver.has_read(300))
    eventually(lambda: len(told(layout, "the broker answers again")) == 2)
    progress = newest_progress(layout, 1)
    assert progress is not None
    assert progress.attempt == outage.attempt, "the same driver went on"
    stop(driver)
    assert_clean(spark, outage.settings)
