"""Records that were read and not stored, and commands without an outcome, on a real broker and real tables."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from switchyard.health.accounting import account_for_commands, account_for_records
from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import TopicReader, ensure_topics
from switchyard.layout import BIG_TABLES, Layout
from switchyard.offsets import to_json
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap.control_loop import run_round
from switchyard.swap.generations import keep_spec, resolve_spec
from switchyard.swap.history import StatusRow
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.progress import Progress, report
from switchyard.tables.schemas import SCHEMAS
from tests.histories import set_row
from tests.topics import Topics
from tests.waiting import eventually

NOW = datetime.now(UTC)


def store_offsets(layout: Layout, table: str, topic: str, offsets: list[int]) -> None:
    place = {"generation": 1, "topic": topic, "partition": 0, "ts": NOW}
    rows = pa.Table.from_pylist([{**place, "offset": offset} for offset in offsets], schema=SCHEMAS[table])
    store.write_deltalake(store.open_table(layout, table), rows, mode="append")


@pytest.fixture
def settings(layout: Layout, topics: Topics) -> Settings:
    """Generation 1 has read five users, of which the fourth is a tombstone, and two accounts."""
    settings = Settings(root=layout.root, control_topic=f"control-{uuid.uuid4().hex[:8]}")
    target = Target(topics.users, topics.accounts, "left")
    with TopicReader(topics.kafka) as reader:
        keep_spec(layout, resolve_spec(reader, target, "earliest", generation=1))
    set_row(HistoryStore(layout), StatusRow(generation=1, target=target, lastApplied=NOW))
    topics.send_raw(topics.users, [b"{}", b"{}", b"{}", None, b"{}"])
    topics.send_raw(topics.accounts, [b"{}", b"{}"])
    return settings


def report_end(layout: Layout, topics: Topics) -> None:
    versions = [store.open_table(layout, name).version() for name in BIG_TABLES]
    starts = {name: {0: 0, 1: 0} for name in (topics.users, topics.accounts)}
    ends = {topics.users: {0: 5, 1: 0}, topics.accounts: {0: 2, 1: 0}}
    report(layout, Progress(1, 1, 0, NOW, 7, 1.0, 1, 0, *versions, 0, 1, to_json(starts), to_json(ends)))


def test_holes_are_clean_when_the_broker_has_no_record_there(settings: Settings, topics: Topics) -> None:
    for table, topic, offsets in (
        ("users", topics.users, [0, 2, 4]),
        ("rejects", topics.users, [1]),
        ("accounts", topics.accounts, [0, 1]),
    ):
        store_offsets(settings.layout, table, topic, offsets)
    report_end(settings.layout, topics)
    finding = account_for_records(settings, topics.kafka)
    assert finding.is_clean, finding
    assert "1 tombstones" in finding.text


def test_a_record_that_was_read_over_is_named(settings: Settings, topics: Topics) -> None:
    for table, topic, offsets in (
        ("users", topics.users, [0, 1, 4]),
        ("rejects", topics.users, []),
        ("accounts", topics.accounts, [0, 1]),
    ):
        store_offsets(settings.layout, table, topic, offsets)
    report_end(settings.layout, topics)
    finding = account_for_records(settings, topics.kafka)
    assert not finding.is_clean
    assert f"Kafka holds a record at 1 of them, the first: {topics.users}-0-2" in finding.text


def test_before_anything_is_active_there_is_nothing_to_account_for(layout: Layout, topics: Topics) -> None:
    assert account_for_records(Settings(root=layout.root), topics.kafka).is_clean


def test_every_control_message_is_kept_and_settled(settings: Settings, topics: Topics) -> None:
    topic = settings.control_topic
    ensure_topics(topics.kafka, [topic])
    eventually(lambda: topic in TopicReader(topics.kafka).list_topics(), 30)
    assert account_for_commands(settings, topics.kafka).is_clean
    for value in (b"nonsense", b'{"id": "mine", "dryRun": true}', None):
        publish(topics.kafka, topic, value, "cli:test")
    run_round(settings, topics.kafka)
    finding = account_for_commands(settings, topics.kafka)
    assert finding.is_clean, finding
    assert "the 3 control messages are all stored" in finding.text
    lost = {"topic": topic, "partition": 0, "offset": 7, "ts": NOW, "value": json.dumps({"id": "lost"})}
    store.append_rows(settings.layout, "control_raw", [lost])
    finding = account_for_commands(settings, topics.kafka)
    assert (finding.is_clean, finding.text) == (
        False,
        f"1 control messages have no outcome, the first: {topic}-0-7",
    )
