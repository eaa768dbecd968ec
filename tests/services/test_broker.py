"""The embedded broker, started for real."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from switchyard.errors import SwitchyardError
from switchyard.kafka.topics import TopicReader, ensure_topics
from switchyard.local import loopback
from switchyard.local.broker import Broker

READY_SECONDS = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker", loopback.pick_free_port())
    yield broker
    broker.stop()


def start(broker: Broker) -> None:
    broker.start()
    broker.wait_until_ready(READY_SECONDS)


def kill(broker: Broker) -> None:
    """A signal is not yet an end: start() would still see the old process."""
    os.kill(int(broker.pid_file.read_text()), signal.SIGKILL)
    deadline = time.monotonic() + READY_SECONDS
    while broker.is_running():
        assert time.monotonic() < deadline, "the broker survived SIGKILL"


def write(broker: Broker, topic: str, value: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(READY_SECONDS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    producer.produce(topic, value)
    assert producer.flush(READY_SECONDS) == 0


def read_first(broker: Broker, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(READY_SECONDS)
        return None if message is None else message.value()
    finally:
        consumer.close()


def test_data_and_cluster_id_survive_a_restart_on_another_port(broker: Broker) -> None:
    start(broker)
    write(broker, "kept", b"value")
    cluster_id = broker.cluster_id()
    broker.stop()
    assert not broker.is_running()

    again = Broker(broker.folder, loopback.pick_free_port())
    try:
        start(again)
        assert read_first(again, "kept") == b"value"
        assert again.cluster_id() == cluster_id
    finally:
        again.stop()


def test_data_survives_a_kill(broker: Broker) -> None:
    start(broker)
    write(broker, "kept", b"value")
    kill(broker)
    start(broker)
    assert read_first(broker, "kept") == b"value"


def test_another_process_finds_and_stops_it(broker: Broker) -> None:
    start(broker)
    stranger = Broker(broker.folder, broker.port)
    assert stranger.is_running()
    stranger.stop()
    assert not broker.is_running()
    assert loopback.is_free(broker.port)


def test_starting_twice_starts_one(broker: Broker) -> None:
    start(broker)
    pid = broker.pid_file.read_text()
    Broker(broker.folder, broker.port).start()
    assert broker.pid_file.read_text() == pid


def test_a_broker_that_cannot_start_says_why(broker: Broker) -> None:
    broker.format_storage()
    (broker.data / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=someone-else\n")
    broker.start()
    with pytest.raises(SwitchyardError, match=r"^the broker ended at once: .*broker.log"):
        broker.wait_until_ready(READY_SECONDS)


def test_topics_that_were_created_can_be_asked_for_at_once(broker: Broker) -> None:
    """With many partitions the controller has created a topic well before the broker shows it."""
    start(broker)
    kafka, names, partitions = {"bootstrap.servers": broker.bootstrap}, [f"wide-{number}" for number in range(4)], 100
    with TopicReader(kafka) as reader:
        for name in names:
            assert ensure_topics(kafka, [name], partitions) == [name]
            assert len(reader.partitions(name)) == partitions
        assert ensure_topics(kafka, names, partitions) == []
