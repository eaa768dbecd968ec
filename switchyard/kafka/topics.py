"""What the broker says about topics: whether they exist, where they begin and end, where a time lies."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from switchyard.errors import InputError, SwitchyardError

T = TypeVar("T")
Offsets = dict[str, dict[int, int]]
"""topic → partition → offset"""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TIMEOUT_SECONDS = 10.0
_NO_LEADER_YET = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
_quiet = logging.getLogger("switchyard.kafka.client")


def check_topic_name(name: str) -> None:
    if not _TOPIC_NAME.fullmatch(name) or name in (".", "..") or name.startswith("__"):
        raise InputError(
            f"{name!r} is not a topic name that may be joined: 1 to 249 of the characters A-Z a-z 0-9 . _ - "
            "are allowed, and neither '.', '..' nor a name beginning with '__'"
        )


def ensure_topics(properties: Mapping[str, str], names: Iterable[str], partitions: int = 1) -> list[str]:
    """Creates the topics that do not exist yet; returns their names."""
    admin = AdminClient(dict(_base(properties)))
    wanted = [NewTopic(name, num_partitions=partitions) for name in names]
    created = []
    for name, outcome in admin.create_topics(wanted, operation_timeout=_TIMEOUT_SECONDS).items():
        try:
            outcome.result()
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _explained(error, f"cannot create the topic {name}") from None
    return created


class TopicReader:
    """Reads positions of topics with one connection; close it, or use it as a context manager."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        settings = _base(properties) | {"group.id": "switchyard-positions", "enable.auto.commit": "false"}
        self._consumer = Consumer(settings, logger=_quiet)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic; says so in one sentence when there is no such topic or no way to it."""
        check_topic_name(topic)
        try:
            found = self._consumer.list_topics(topic, timeout=_TIMEOUT_SECONDS).topics[topic]
        except KafkaException as error:
            raise _explained(error, f"cannot ask the broker for the topic {topic}") from None
        if found.error is not None:
            raise InputError(_why_not(topic, found.error))
        return sorted(found.partitions)

    def bounds(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """The first and the next offset of every partition."""
        first, following = {}, {}
        for partition in self.partitions(topic):
            place = TopicPartition(topic, partition)
            try:
                low, high = _ask(partial(self._consumer.get_watermark_offsets, place, timeout=_TIMEOUT_SECONDS))
            except KafkaException as error:
                raise _explained(error, f"cannot read the topic {topic}") from None
            first[partition], following[partition] = low, high
        return first, following

    def offsets_at(self, topic: str, moment: datetime) -> dict[int, int]:
        """The first offset at or after a moment; the end of a partition that has none."""
        stamp = int(moment.timestamp() * 1000)
        asked = [TopicPartition(topic, partition, stamp) for partition in self.partitions(topic)]
        try:
            found = _ask(partial(self._consumer.offsets_for_times, asked, timeout=_TIMEOUT_SECONDS))
        except KafkaException as error:
            raise _explained(error, f"cannot look up {moment.isoformat()} in the topic {topic}") from None
        _, following = self.bounds(topic)
        return {item.partition: item.offset if item.offset >= 0 else following[item.partition] for item in found}

    def resolve_start(self, topic: str, start: str) -> dict[int, int]:
        """`latest`, `earliest` or an ISO timestamp as one offset for each partition."""
        first, following = self.bounds(topic)
        if start == "latest":
            return following
        if start == "earliest":
            return first
        return self.offsets_at(topic, parse_moment(start))


def _ask(question: Callable[[], T]) -> T:
    """Asks again while the leader of a partition is being chosen, as right after a topic was created."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            return question()
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def parse_moment(start: str) -> datetime:
    try:
        moment = datetime.fromisoformat(start)
    except ValueError:
        raise InputError(
            f"start {start!r} is none of latest, earliest, resume and an ISO timestamp like 2026-01-31T12:00:00Z"
        ) from None
    return moment if moment.tzinfo else moment.astimezone()


def _base(properties: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in properties.items() if not name.startswith("auto.offset")}
    return kept | {"socket.timeout.ms": "10000", "log.connection.close": "false"}


def _why_not(topic: str, error: KafkaError) -> str:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return f"the topic {topic} does not exist on the broker; create it or name another"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"the Kafka user may not read the topic {topic}; grant DESCRIBE and READ on it"
    return f"the topic {topic} cannot be used: {error.str()}"


def _explained(error: KafkaException, what: str) -> SwitchyardError:
    cause = error.args[0]
    text = cause.str() if isinstance(cause, KafkaError) else str(cause)
    return SwitchyardError(f"{what}: {text}; is the broker up and the connection kafka_default right?")
