"""Watch topics for new records with a consumer that is handed in: where they are, never what they say.

Partitions are assigned by hand: after a watcher was killed, a group would get nothing until its session timed out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from switchyard.deadline import Deadline
from switchyard.kafka.clients import ErrorListener, open_client

LOG_SECONDS = 60.0
MOST_AT_ONCE = 1000
Place = tuple[str, int, int]
log = logging.getLogger("switchyard.watcher")


class LoggingListener(ErrorListener):
    """Log an error once a minute: librdkafka reports it many times a second while the broker is away."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self._next_line = Deadline(0)

    def __call__(self, error: KafkaError) -> None:
        super().__call__(error)
        if self._next_line.restart_if_passed(LOG_SECONDS):
            log.warning("Kafka: %s", self.diagnose(error) or self.hide(error.str()))


def open_watcher(properties: Mapping[str, str], group: str) -> Consumer:
    """Open a consumer with the settings of the connection; the group is for the committed positions only."""
    own = {
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": 2,
        "reconnect.backoff.ms": 500,
        "reconnect.backoff.max.ms": 2000,
    }
    return open_client(Consumer, {**properties, **own}, LoggingListener(properties))


def assign_new(consumer: Consumer, topics: Iterable[str], assigned: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Assign partitions that are new; the others keep their position."""
    try:
        found = {
            (name, partition)
            for topic in topics
            for name, data in consumer.list_topics(topic, timeout=5).topics.items()
            for partition in data.partitions
        }
        if found - assigned:
            consumer.incremental_assign([TopicPartition(*key) for key in sorted(found - assigned)])
    except KafkaException as error:
        log.warning("the watcher cannot see %s: %s", ", ".join(topics), error)
        return assigned
    return assigned | found


def poll_newest(consumer: Consumer, seconds: float) -> list[Place]:
    """Wait for one message, take all that have come with it, and return the newest place of each partition."""
    newest: dict[tuple[str, int], Place] = {}
    first = consumer.poll(seconds)
    for message in [first, *consumer.consume(MOST_AT_ONCE, 0)] if first is not None else []:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if message.error() or topic is None or partition is None or offset is None:
            log.warning("Kafka: %s", message.error())
            continue
        newest[topic, partition] = (topic, partition, offset)
    return list(newest.values())
