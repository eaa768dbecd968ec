"""The driver as a real process: killed at every dangerous point, replaced, stopped, refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from switchyard.errors import InputError
from switchyard.generations import load_spec, request_generation
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.stream.audit import audit_at_newest
from switchyard.stream.lifecycle import End, run_generation
from switchyard.tables import history, store
from switchyard.tables.history import Event
from switchyard.tables.progress import newest_progress
from switchyard.tables.status import read_status
from tests.events import FIRST_MS, draw_events
from tests.stream.driver import running_driver
from tests.topics import Topics
from tests.waiting import eventually

FENCED, KILLED, STOPPED = 75, 137, 143
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
    return Settings(root=layout.root, max_offsets_per_trigger=60, linger_seconds=1)


def assert_clean(spark: SparkSession, settings: Settings, generation: int = 1) -> None:
    audit = audit_at_newest(lambda: spark, settings, generation)
    assert (audit.missing, audit.extra, audit.unaccounted, audit.holes) == (0, 0, 0, 0), audit
    assert audit.rowsCompared > 0


def test_killed_at_every_point_nothing_is_lost_or_double(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path
) -> None:
    events = draw_events(seed=11, count=150 * (len(CRASH_POINTS) + 1))
    for number, crash in enumerate(CRASH_POINTS):
        topics.send(events[number * 150 : (number + 1) * 150])
        with running_driver(settings, topics, tmp_path, join_type="left", crash=crash) as driver:
            assert driver.wait() == KILLED, driver.tail()
    topics.send(events[-150:])
    with running_driver(settings, topics, tmp_path, join_type="left") as driver:
        eventually(lambda: driver.has_read(len(events)))
        driver.ask_to_stop()
        assert driver.wait() == STOPPED
    progress = newest_progress(settings.layout, 1)
    assert progress is not None
    assert progress.attempt == len(CRASH_POINTS) + 1
    events_of_swap = [row["event"] for row in history.read_history(settings.layout)]
    assert events_of_swap == [Event.REQUESTED, Event.STARTING, Event.READY, Event.APPLIED]
    assert_clean(spark, settings)


def test_second_driver_of_a_generation_fences_the_first_out(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path
) -> None:
    events = draw_events(seed=12, count=300)
    topics.send(events[:100])
    with running_driver(settings, topics, tmp_path, join_type="natural") as first:
        eventually(lambda: first.has_read(100))
        with running_driver(settings, topics, tmp_path, join_type="natural") as second:
            topics.send(events[100:200])
            assert first.wait() == FENCED, first.tail()
            topics.send(events[200:])
            eventually(lambda: second.has_read(300))
            second.ask_to_stop()
            assert second.wait() == STOPPED
    assert_clean(spark, settings)


def ask(settings: Settings, topics: Topics, swap_id: str, join_type: str, start: str) -> int:
    return request_generation(
        settings,
        users_topic=topics.users,
        accounts_topic=topics.accounts,
        join_type=join_type,
        start=start,
        swap_id=swap_id,
        requested_by="test",
        kafka=topics.kafka,
    )


def test_newer_generation_takes_over_and_the_older_one_retires_and_resumes(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path
) -> None:
    layout = settings.layout
    topics.send(draw_events(seed=13, count=100))
    assert ask(settings, topics, "first", "left", "earliest") == 1
    assert ask(settings, topics, "second", "asof", "earliest") == 2
    with running_driver(settings, topics, tmp_path, generation=1, join_type="left") as old:
        eventually(lambda: (status := read_status(layout)) and status.generation == 1)
        with running_driver(settings, topics, tmp_path, generation=2, join_type="asof") as new:
            eventually(lambda: (status := read_status(layout)) and status.generation == 2)
            assert old.wait() == 0, old.tail()
            topics.send(draw_events(seed=14, count=50))
            eventually(lambda: new.has_read(150))
            new.ask_to_stop()
            assert new.wait() == STOPPED
    rows = history.read_history(layout)
    assert [row["event"] for row in rows if row["swapId"] == "first"] == [
        Event.REQUESTED,
        Event.STARTING,
        Event.READY,
        Event.APPLIED,
        Event.LINGERING,
        Event.RETIRED,
    ]
    assert [row["event"] for row in rows if row["swapId"] == "second"] == [
        Event.REQUESTED,
        Event.STARTING,
        Event.READY,
        Event.APPLIED,
    ]
    assert_clean(spark, settings, 1)
    assert_clean(spark, settings, 2)
    assert ask(settings, topics, "third", "left", "resume") == 1
    assert ask(settings, topics, "third", "left", "resume") == 1
    with running_driver(settings, topics, tmp_path, generation=1, join_type="left") as resumed:
        eventually(lambda: (status := read_status(layout)) and status.generation == 1)
        eventually(lambda: resumed.has_read(150))
        resumed.ask_to_stop()
        assert resumed.wait() == STOPPED
    assert_clean(spark, settings, 1)


def test_a_driver_started_again_after_its_generation_retired_does_nothing(settings: Settings, topics: Topics) -> None:
    """Also when it was superseded before it was active: that must not be taken for a new request."""
    ask(settings, topics, "first", "left", "latest")
    spec = load_spec(settings.layout, 1)
    swap = history.find_swap(history.read_history(settings.layout), 1)
    assert spec is not None
    assert swap is not None
    for event in (Event.SUPERSEDED, Event.RETIRED):
        history.record(settings.layout, swap, event)
    before = history.read_history(settings.layout)
    assert run_generation(settings, spec, topics.kafka) is End.RETIRED
    assert history.read_history(settings.layout) == before


def test_a_timestamp_starts_at_the_first_record_not_before_it(settings: Settings, topics: Topics) -> None:
    for second in (0, 10, 20):
        topics.send([("user", 0, FIRST_MS + second * 1000, {"userId": "a"})])
    moment = datetime.fromtimestamp(FIRST_MS / 1000 + 5, UTC).isoformat()
    ask(settings, topics, "timed", "left", moment)
    spec = load_spec(settings.layout, 1)
    assert spec is not None
    assert spec.startOffsets == {topics.users: {0: 1, 1: 0}, topics.accounts: {0: 0, 1: 0}}
    assert spec.readyOffsets == {topics.users: {0: 3, 1: 0}, topics.accounts: {0: 0, 1: 0}}


@pytest.mark.parametrize(
    ("users", "accounts", "join_type", "start", "reason"),
    [
        ("no-such-topic", None, "left", "latest", "the topic no-such-topic does not exist"),
        ("a,b", None, "left", "latest", "is not a topic name"),
        ("..", None, "left", "latest", "is not a topic name"),
        ("__consumer_offsets", None, "left", "latest", "is not a topic name"),
        ("control", None, "left", "latest", "is the control topic"),
        (None, "same", "left", "latest", "cannot both come from"),
        (None, None, "cross", "latest", "is not a join type"),
        (None, None, "left", "yesterday", "none of latest, earliest, resume"),
        (None, None, "left", "resume", "no retired generation"),
    ],
)
def test_bad_request_is_refused_before_a_driver_starts_and_leaves_nothing_behind(
    settings: Settings, topics: Topics, users: str | None, accounts: str | None, join_type: str, start: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        request_generation(
            settings,
            users_topic=users or topics.users,
            accounts_topic=topics.users if accounts == "same" else topics.accounts,
            join_type=join_type,
            start=start,
            swap_id="bad",
            requested_by="test",
            kafka=topics.kafka,
        )
    assert [(row["event"], row["swapId"]) for row in history.read_history(settings.layout)] == [(Event.REJECTED, "bad")]
    left = {path.name for path in Path(settings.root).iterdir()}
    assert left == {"tables"}
    assert {path.name for path in (Path(settings.root) / "tables").iterdir()} == {"swap_history", "logs"}
    assert store.read_rows(settings.layout, "logs")[0]["level"] == "WARNING"
