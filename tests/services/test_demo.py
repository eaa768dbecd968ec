"""The demo on a real broker: what it sends, and that a second start goes on with new people."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from switchyard.cli.main import main
from switchyard.kafka.demo import DemoProducer
from switchyard.kafka.topics import TopicReader
from tests.topics import Topics


def read_ids(topics: Topics) -> list[str]:
    """The id of each record of both topics."""
    ids: list[str] = []
    with TopicReader(topics.kafka) as reader:
        ends = {topic: reader.bounds(topic)[1] for topic in (topics.users, topics.accounts)}
    consumer = Consumer(topics.kafka | {"group.id": "test"})
    consumer.assign([TopicPartition(topic, number, 0) for topic, parts in ends.items() for number in parts])
    while len(ids) < sum(sum(parts.values()) for parts in ends.values()):
        ids += [json.loads(message.value())["userId"] for message in consumer.consume(1000, timeout=1)]
    consumer.close()
    return ids


def test_so_many_records_are_sent_and_a_second_start_has_other_people(topics: Topics) -> None:
    producer = DemoProducer(topics.kafka, topics.users, topics.accounts)
    producer.send_fast(500)
    assert producer.sent == 500
    first = Counter(read_ids(topics))
    assert first.total() == 500
    producer = DemoProducer(topics.kafka, topics.users, topics.accounts)
    producer.send_steadily(5_000, 0.2)
    later = Counter(read_ids(topics)) - first
    assert later.total() == producer.sent > 0
    assert not first.keys() & later.keys()


def test_a_seed_sends_the_same_people_again(topics: Topics) -> None:
    for _ in range(2):
        DemoProducer(topics.kafka, topics.users, topics.accounts, seed=1).send_fast(50)
    assert {count % 2 for count in Counter(read_ids(topics)).values()} == {0}


def test_the_command_sends_so_many_records(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The root of this clone may have an Airflow, whose connection counts.
    monkeypatch.setenv("SWITCHYARD_ROOT", str(tmp_path))
    monkeypatch.setenv("SWITCHYARD_KAFKA_BOOTSTRAP", topics.bootstrap)
    pair = ["--users-topic", topics.users, "--accounts-topic", topics.accounts]
    assert main(["demo", "--records", "70", "--json", *pair]) == 0
    assert json.loads(capsys.readouterr().out) == {"sent": 70}
    assert len(read_ids(topics)) == 70


def test_a_topic_that_does_not_exist_is_told_before_anything_is_sent(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The root of this clone may have an Airflow, whose connection counts.
    monkeypatch.setenv("SWITCHYARD_ROOT", str(tmp_path))
    monkeypatch.setenv("SWITCHYARD_KAFKA_BOOTSTRAP", topics.bootstrap)
    pair = ["--users-topic", topics.users, "--accounts-topic", "no-such-topic"]
    assert main(["demo", "--records", "70", *pair]) == 2
    assert "the topic no-such-topic does not exist" in capsys.readouterr().err
    assert read_ids(topics) == []
