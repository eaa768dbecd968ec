"""Snapshots built by the real job on real topics: equal to the stream, of just the range, once whatever crashes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from switchyard.errors import FencedError, InputError
from switchyard.health.checks import CHECKS, Level
from switchyard.health.inputs import run_checks
from switchyard.health.status_report import describe_status
from switchyard.kafka.topics import TopicReader
from switchyard.layout import BIG_TABLES, JOIN_TYPES, Layout
from switchyard.records import LEFT
from switchyard.settings import Settings
from switchyard.stream import backfill
from switchyard.stream.audit import audit_at_newest
from switchyard.stream.backfill import run_backfill
from switchyard.swap import flip, transitions
from switchyard.swap.backfills import BackfillHandler, backfill_id, explain_end, require_snapshot
from switchyard.swap.commands import Answer, CommandHandler
from switchyard.swap.control_message import Message
from switchyard.swap.generations import load_spec, spec_for_driver
from switchyard.swap.history import Entry, Event
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.reconcile import SNAPSHOT_TIME, reconcile, report_snapshot
from switchyard.tables import store
from switchyard.tables.progress import newest_progress
from switchyard.tables.stable_names import newest_rows
from switchyard.tables.writer import TableWriter
from switchyard.upkeep.forget import Outcome, forget_user
from tests.events import FIRST_MS, draw_events
from tests.stream.running import Stream
from tests.topics import Topics

BAD_VALUES = [b"{nonsense", b'{"name": "nobody"}', b"\xff\xfe", b'{"userId": "x", "balance": "much", "age": "old"}']


@pytest.fixture
def settings(layout: Layout) -> Settings:
    return Settings(root=layout.root, min_dwell_seconds=0, linger_seconds=0, stale_seconds=0.001)


def order(settings: Settings, topics: Topics, name: str = "one", **fields: Any) -> Answer:
    wanted = {"users_topic": topics.users, "accounts_topic": topics.accounts, "join_type": "left"} | fields
    with TopicReader(topics.kafka) as reader:
        return BackfillHandler(settings, reader).order(wanted, backfill_id(name), "test")


def run(spark: SparkSession, settings: Settings, topics: Topics, generation: int = 1) -> Entry:
    return run_backfill(settings, require_snapshot(settings, generation), topics.kafka, lambda: spark)


def publish(settings: Settings, topics: Topics, generation: int, swap_id: str) -> Entry:
    with TopicReader(topics.kafka) as reader:
        handler = BackfillHandler(settings, reader)
        answer = handler.wait_for_flip(handler.publish(generation, swap_id, "test"))
    assert answer.outcome is not None
    return answer.outcome


def rows_of(layout: Layout, name: str) -> Counter[tuple[Any, ...]]:
    """The rows of generation 1 without its number."""
    columns = [column for column in store.SCHEMAS[name].names if column != "generation"]
    rows = store.read_arrow(layout, name, generation=1, columns=columns)
    return Counter(zip(*rows.to_pydict().values(), strict=True))


def places(layout: Layout, name: str, generation: int = 1) -> set[tuple[int, int]]:
    rows = store.read_arrow(layout, name, generation=generation, columns=["partition", "offset"])
    return set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def assert_clean(spark: SparkSession, settings: Settings, generation: int = 1) -> None:
    audit = audit_at_newest(lambda: spark, settings, generation)
    assert (audit.missing, audit.extra, audit.unaccounted, audit.holes) == (0, 0, 0, 0), audit


def send_with_bad_ones(topics: Topics, seed: int, count: int = 160) -> None:
    topics.send(draw_events(seed, count))
    for topic in (topics.users, topics.accounts):
        topics.send_raw(topic, [*BAD_VALUES, None, None], partition=1, ts_ms=FIRST_MS)


@pytest.mark.parametrize("join_type", JOIN_TYPES)
def test_a_snapshot_has_the_rows_of_a_stream_over_the_same_offsets(
    spark: SparkSession, settings: Settings, topics: Topics, tmp_path: Path, join_type: str
) -> None:
    send_with_bad_ones(topics, seed=31)
    assert order(settings, topics, join_type=join_type).outcome is None
    outcome = run(spark, settings, topics)
    assert outcome.event is Event.PLANNED, outcome
    assert "172 records" in outcome.detail
    assert "8 rejected" in outcome.detail
    assert "equal the batch join" in outcome.detail
    stream = Stream.prepare(spark, Layout(str(tmp_path / "stream")), topics, join_type)
    stream.run_attempt()
    for name in BIG_TABLES:
        ours, theirs = (rows_of(layout, name) for layout in (settings.layout, stream.settings.layout))
        assert ours == theirs
        assert ours.total() > 0
    assert_clean(spark, settings)
    progress = newest_progress(settings.layout, 1)
    assert progress is not None
    assert (progress.inputRows, progress.rejectedRows, progress.tombstones) == (172, 8, 4)
    table_files = [path for name in BIG_TABLES for path in Path(settings.layout.table(name)).rglob("*.parquet")]
    live = {path for name in BIG_TABLES for path in store.open_table(settings.layout, name).file_uris()}
    assert {str(path) for path in table_files} == live, "what was only needed on the way is removed"


def test_a_forgotten_person_does_not_come_back_and_goes_from_a_finished_snapshot(
    spark: SparkSession, settings: Settings, topics: Topics
) -> None:
    topics.send(draw_events(seed=5, count=80, people=4))

    def forget(user_id: str) -> Outcome:
        with TopicReader(topics.kafka) as reader:
            return forget_user(settings, reader, user_id, "test", lambda line: None)

    def people() -> set[str]:
        return {row["userId"] for name in ("users", "accounts", "joined") for row in newest_rows_of(settings, name)}

    order(settings, topics)
    forget("person-1")
    assert run(spark, settings, topics).event is Event.PLANNED
    assert publish(settings, topics, 1, "publish-one").event is Event.APPLIED
    assert people() == {"person-0", "person-2", "person-3"}
    assert_clean(spark, settings)
    assert forget("person-2").generations == {1: "done"}
    assert people() == {"person-0", "person-3"}
    assert_clean(spark, settings)


def newest_rows_of(settings: Settings, name: str) -> list[dict[str, Any]]:
    """What a reader of the stable name sees."""
    stable = {"users": "users_ui", "accounts": "accounts_ui", "joined": "final_ui"}
    return newest_rows(settings.layout, stable[name], 10_000)


def test_a_range_of_offsets_and_one_of_time_hold_just_these_records(
    spark: SparkSession, settings: Settings, topics: Topics
) -> None:
    for second in range(6):
        for partition in (0, 1):
            ts_ms = FIRST_MS + second * 1000
            topics.send([(side, partition, ts_ms, {"userId": f"p{second}"}) for side in ("user", "account")])
    start = {topics.users: {"0": 2}, topics.accounts: {"1": 1}}
    end = {topics.users: {"0": 4, "1": 0}}
    order(settings, topics, "offsets", **{"from": json.dumps(start), "to": json.dumps(end)})
    assert run(spark, settings, topics).event is Event.PLANNED
    assert places(settings.layout, "users") == {(0, 2), (0, 3)}
    assert places(settings.layout, "accounts") == {(0, n) for n in range(6)} | {(1, n) for n in range(1, 6)}
    moments = {
        side: datetime.fromtimestamp(FIRST_MS / 1000 + s, UTC).isoformat() for side, s in (("from", 1), ("to", 3.5))
    }
    order(settings, topics, "time", join_type="inner", **moments)
    assert run(spark, settings, topics, 2).event is Event.PLANNED
    for name in ("users", "accounts"):
        assert places(settings.layout, name, 2) == {(partition, n) for partition in (0, 1) for n in (1, 2, 3)}
    assert store.read_arrow(settings.layout, "joined", generation=2).num_rows == 3 * 4
    # Later records are not part of what was ordered before they came.
    order(settings, topics, "early")
    topics.send([("user", 0, FIRST_MS + 60_000, {"userId": "late"})])
    assert run(spark, settings, topics, 3).event is Event.PLANNED
    assert places(settings.layout, "users", 3) == {(partition, n) for partition in (0, 1) for n in range(6)}
    assert_clean(spark, settings, 1)


@pytest.fixture
def form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the form of a manual run sends when nobody changes it."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    from switchyard.airflow.generation_tasks import FORM_FIELDS
    from tests.dags.conftest import DAGS, load_dag

    params = load_dag(DAGS / "switchyard_generation.py").params
    return {name: params[param] for name, param in FORM_FIELDS.items()}


def test_an_empty_range_is_an_empty_snapshot(
    spark: SparkSession, settings: Settings, topics: Topics, form: dict[str, Any]
) -> None:
    topics.send(draw_events(seed=3, count=20))
    order(settings, topics, **{"to": json.dumps({t: {"0": 0, "1": 0} for t in (topics.users, topics.accounts)})})
    outcome = run(spark, settings, topics)
    assert (outcome.event, "0 records" in outcome.detail) == (Event.PLANNED, True)
    assert all(rows_of(settings.layout, name).total() == 0 for name in BIG_TABLES)
    assert_clean(spark, settings)
    assert publish(settings, topics, 1, "publish-empty").event is Event.APPLIED
    assert newest_rows(settings.layout, "final_ui", 5) == []
    # An unchanged form is refreshed, as its text says; one with a start asks for a stream in the snapshot's place.
    for swap_id, fields, outcome in (("as-it-is", {}, Event.REFRESHED), ("with-a-start", {"start": "latest"}, None)):
        with TopicReader(topics.kafka) as reader:
            handler = CommandHandler(settings, reader)
            answer = handler.take_value(json.dumps(form | fields).encode(), swap_id, "airflow:test")
        assert (answer.outcome and answer.outcome.event) is outcome
        assert handler.history.status_row().generation == 1


class Crash(BaseException):
    """The process ended at this line, and nothing after it ran."""


def dies_before(function: Callable[..., Any], is_here: Callable[..., bool]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **options: Any) -> Any:
        if is_here(*arguments, **options):
            raise Crash
        return function(*arguments, **options)

    return wrapped


def dies_after(function: Callable[..., Any], is_here: Callable[..., bool]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        if is_here(*arguments, **options):
            raise Crash
        return result

    return wrapped


def on_table(name: str) -> Callable[..., bool]:
    return lambda first, *_: name in (first, getattr(first, "name", None))


CRASHES: list[tuple[object, str, Callable[..., Any], Callable[..., bool]]] = [
    (backfill._SnapshotJob, "_write_topic", dies_after, lambda job, side: side == LEFT),
    (backfill._SnapshotJob, "_write_joined", dies_before, lambda *_: True),
    (TableWriter, "commit", dies_before, on_table("users")),
    (TableWriter, "commit", dies_after, on_table("users")),
    (TableWriter, "commit", dies_before, on_table("joined")),
    (backfill, "report", dies_before, lambda *_: True),
    (backfill, "report", dies_after, lambda *_: True),
    (backfill, "settle_snapshot", dies_before, lambda *_: True),
]


def test_whatever_it_dies_at_the_next_attempt_writes_the_rest_once(
    spark: SparkSession, settings: Settings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_with_bad_ones(topics, seed=32)
    order(settings, topics, join_type="natural")
    reads: list[str] = []
    read_range = backfill.read_range

    def count_reads(session: SparkSession, topic: str, *rest: Any) -> Any:
        reads.append(topic)
        return read_range(session, topic, *rest)

    monkeypatch.setattr(backfill, "read_range", count_reads)
    for place, name, dies, is_here in CRASHES:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, dies(getattr(place, name), is_here))
            with pytest.raises(Crash):
                run(spark, settings, topics)
    zombie = TableWriter(settings.layout, "users", 1, len(CRASHES))
    assert run(spark, settings, topics).event is Event.PLANNED
    assert run(spark, settings, topics).event is Event.PLANNED, "again, it has nothing to do"
    with pytest.raises(FencedError):
        zombie.refresh()
    # The first attempt died with users read and not noted; what was noted is not read again.
    assert reads == [topics.users, topics.users, topics.accounts]
    assert_clean(spark, settings)
    events = [entry.event for entry in HistoryStore(settings.layout).ledger().entries]
    assert events == [Event.REQUESTED, Event.STARTING, Event.PLANNED, Event.RETIRED]


def test_records_that_kafka_has_deleted_fail_the_backfill_with_a_clear_reason_and_leave_nothing(
    spark: SparkSession, settings: Settings, topics: Topics
) -> None:
    topics.send(draw_events(seed=33, count=60))
    order(settings, topics)
    admin = AdminClient(topics.kafka)
    for outcome in admin.delete_records([TopicPartition(topics.users, 0, 5)]).values():
        outcome.result(30)
    outcome = run(spark, settings, topics)
    assert outcome.event is Event.FAILED
    assert f"no longer holds offset 0 of partition 0 of {topics.users}, its first one is 5" in outcome.detail
    assert load_spec(settings.layout, 1) is None
    assert HistoryStore(settings.layout).ledger().is_retired(1)
    assert run_is_refused(spark, settings, topics)
    refused = order(settings, topics, "again", **{"from": json.dumps({topics.users: {"0": 4}})})
    assert refused.outcome is not None
    assert (refused.outcome.event, "no longer holds offset 4" in refused.outcome.detail) == (Event.REJECTED, True)
    order(settings, topics, "later")
    assert run(spark, settings, topics, 2).event is Event.PLANNED
    assert_clean(spark, settings, 2)


def test_a_join_that_explodes_is_given_up_and_leaves_nothing(
    spark: SparkSession, settings: Settings, topics: Topics
) -> None:
    topics.send([(side, n % 2, FIRST_MS + n, {"userId": "hot"}) for n in range(100) for side in ("user", "account")])
    order(settings, topics)
    outcome = run(spark, settings.model_copy(update={"most_batch_rows": 2_000}), topics)
    assert outcome.event is Event.FAILED
    assert outcome.detail.startswith("a task of the join makes more than 2000 rows, because few userIds have very many")
    assert all(rows_of(settings.layout, name).total() == 0 for name in BIG_TABLES)
    assert not list(Path(settings.root).rglob("bulk-*"))


def test_why_an_attempt_failed_is_told_and_ends_up_in_the_history(settings: Settings, topics: Topics) -> None:
    topics.send(draw_events(seed=5, count=20))
    order(settings, topics)
    with pytest.raises(MemoryError):
        run_backfill(settings, require_snapshot(settings, 1), topics.kafka, take_all_memory)
    snapshot = HistoryStore(settings.layout).ledger().snapshots[1]
    assert explain_end(settings.layout, snapshot, "failed") == (
        "its task ended as failed before it was built: attempt 1 of the backfill of generation 1 failed: "
        "the driver had not enough memory; raise SWITCHYARD_DRIVER_MEMORY"
    )


def take_all_memory() -> SparkSession:
    pa.allocate_buffer(2**62)
    raise AssertionError("there was enough")


def run_is_refused(spark: SparkSession, settings: Settings, topics: Topics) -> bool:
    with pytest.raises(InputError, match="was not ordered as a backfill"):
        run(spark, settings, topics)
    return True


def test_rows_that_are_not_the_join_are_never_published(
    spark: SparkSession, settings: Settings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.send(draw_events(seed=34, count=60))
    order(settings, topics)
    wrong = {"left": lambda users, accounts, within: backfill.JOINS["inner"](users, accounts, within).limit(5)}

    def write_wrong(job: Any, staged: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(backfill, "JOINS", wrong | {"inner": backfill.JOINS["inner"]})
            return write_joined(job, staged)

    write_joined = backfill._SnapshotJob._write_joined
    monkeypatch.setattr(backfill._SnapshotJob, "_write_joined", write_wrong)
    outcome = run(spark, settings, topics)
    assert (outcome.event, "the data gate is shut" in outcome.detail) == (Event.FAILED, True)
    assert all(rows_of(settings.layout, name).total() == 0 for name in BIG_TABLES)
    refused = publish(settings, topics, 1, "publish-wrong")
    assert (refused.event, "is not finished" in refused.detail) == (Event.REJECTED, True)


def stream_takes_over(settings: Settings, swap_id: str) -> None:
    """What the driver of a stream does when it is ready; the driver itself is not part of this."""
    history = HistoryStore(settings.layout)
    request = history.ledger().find(swap_id)
    assert request is not None
    for event in (Event.STARTING, Event.READY):
        transitions.note(history, request.entry(event))
    assert flip.try_flip(history, swap_id, datetime.now(UTC), settings.rules)
    transitions.settle_due(history, datetime.now(UTC))


def test_a_published_snapshot_is_healthy_without_a_driver_and_a_rollback_goes_both_ways(
    spark: SparkSession, settings: Settings, topics: Topics
) -> None:
    layout = settings.layout
    topics.send(draw_events(seed=35, count=80))
    message = Message(topics.users, topics.accounts, "left", "earliest")
    with TopicReader(topics.kafka) as reader:
        handler = BackfillHandler(settings, reader)
        handler.take(message, "first", "test")
        stream_takes_over(settings, "first")
        order(settings, topics, "history")
        handler.take(replace(message, joinType="inner"), "beside", "test")
        run(spark, settings, topics, 2)
        assert handler.history.ledger().pending == handler.history.ledger().find("beside"), (
            "it goes on beside the backfill"
        )
        assert handler.history.status_row().generation == 1
        published = publish(settings, topics, 2, "publish-history")
        assert (published.event, published.start) == (Event.APPLIED, "resume")
        assert handler.history.ledger().outcomes["beside"].event is Event.SUPERSEDED
        assert publish(settings, topics, 2, "publish-again").event is Event.REFRESHED
        assert_it_is_healthy(settings, topics)
        reconcile(settings, handler.history)
        assert handler.history.ledger().is_retired(1), "no heartbeat of a snapshot has to be waited for"
        back = handler.roll_back("rollback-1", "test")
        wanted = handler.next_run()
        assert (back.outcome, wanted and wanted.run_id) == (None, "generation-1.2")
        stream_takes_over(settings, "rollback-1")
        reconcile(settings, handler.history)
        again = handler.roll_back("rollback-2", "test").outcome
        assert again is not None
        assert (again.event, again.generation, handler.next_run()) == (Event.APPLIED, 2, None)
        same = handler.take(replace(message, start=None), "same", "test").outcome
        assert same is not None
        assert same.event is Event.REFRESHED
        resumed = handler.take(replace(message, start="resume"), "a-stream-again", "test")
        assert (resumed.outcome, resumed.request and resumed.request.generation) == (None, 1)
        target = require_snapshot(settings, 2).target
        with pytest.raises(InputError, match="is a finished snapshot of history; no driver can stream into it"):
            spec_for_driver(settings, reader, 2, target, "latest")
    report_snapshot(layout, handler.history, datetime.now(UTC) + SNAPSHOT_TIME)
    progress = newest_progress(layout, 2)
    assert progress is not None
    assert progress.usersVersion == store.open_table(layout, "users").version()
    assert_clean(spark, settings, 2)


def assert_it_is_healthy(settings: Settings, topics: Topics) -> None:
    status = describe_status(settings)
    assert (status["generation"], status["healthy"], status["reason"]) == (2, True, "it is a finished snapshot")
    assert (status["snapshot"]["from"], status["snapshot"]["to"]) == ("earliest", "latest")
    assert {row["generation"] for row in newest_rows(settings.layout, "final_ui", 5)} == {2}
    levels = {check: run_checks(settings, topics.kafka, [check])[0].level for check in CHECKS if check != "disk"}
    assert set(levels.values()) == {Level.OK}, levels
