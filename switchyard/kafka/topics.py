"""Asks the broker about topics: whether they exist, where they begin and end, which offset a time has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TypeVar

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from switchyard.deadline import Deadline
from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka.client_settings import for_producers, name_group
from switchyard.kafka.clients import TIMEOUT_SECONDS, ErrorListener, list_topics, open_client
from switchyard.kafka.input_checks import check_topic_name, parse_moment

T = TypeVar("T")
_POLL_SECONDS = 1.0
_METADATA_POLL_SECONDS = 0.05
_CANNOT_LIST = "cannot ask the broker for its topics"
_NOT_YET = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


def ensure_topics(properties: Mapping[str, str], names: Iterable[str], partitions: int = 1) -> list[str]:
    """Create the topics that do not exist yet, wait until the broker lists them, and return their names."""
    listener = ErrorListener(properties)
    admin = open_client(AdminClient, for_producers(base_properties(properties)), listener)
    wanted = [NewTopic(name, num_partitions=partitions) for name in names]
    created = []
    for name, outcome in admin.create_topics(wanted, operation_timeout=TIMEOUT_SECONDS).items():
        try:
            outcome.result()
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                listener.raise_access_error()
                raise listener.explain(error, f"cannot create the topic {name}") from None
    _wait_until_shown(admin, listener, created, partitions)
    return created


def _wait_until_shown(admin: AdminClient, listener: ErrorListener, names: Sequence[str], partitions: int) -> None:
    """CreateTopics returns before the brokers list the topic, so poll the metadata.

    Give up in silence at the deadline: a client that may create a topic need not be allowed to see it.
    """
    deadline = Deadline(TIMEOUT_SECONDS)
    for _ in deadline.polls(_METADATA_POLL_SECONDS) if names else ():
        shown = list_topics(admin, listener, _CANNOT_LIST, deadline=deadline)
        if all(name in shown and _count_led(shown[name]) >= partitions for name in names):
            return


def _count_led(topic: TopicMetadata) -> int:
    """How many of its partitions have a leader that can be asked."""
    return 0 if topic.error else sum(partition.leader >= 0 for partition in topic.partitions.values())


class TopicReader(AbstractContextManager["TopicReader"]):
    def __init__(self, properties: Mapping[str, str]) -> None:
        self._listener = ErrorListener(properties)
        own = {"group.id": name_group("positions"), "fetch.wait.max.ms": "20"}
        self._consumer = open_reader(properties, own, self._listener)
        self._properties = base_properties(properties)

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def list_topics(self) -> dict[str, int]:
        """Every topic that this client may see, with its number of partitions."""
        found = list_topics(self._consumer, self._listener, _CANNOT_LIST)
        return {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}

    def list_joinable(self) -> dict[str, int]:
        """Without the topics that Kafka keeps for itself."""
        return {name: count for name, count in self.list_topics().items() if not name.startswith("__")}

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic; raise one sentence when the topic does not exist or cannot be reached."""
        check_topic_name(topic)
        what = f"cannot ask the broker for the topic {topic}"
        found = list_topics(self._consumer, self._listener, what, topic)[topic]
        if found.error is not None:
            raise InputError(_why_not(topic, found.error))
        return sorted(found.partitions)

    def topic_id(self, topic: str) -> str:
        """Return the broker's id of the topic, which is another one after the topic was deleted and created again."""

        def describe() -> str:
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)
            return str(asked[topic].result().topic_id)

        try:
            return ask(describe)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise InputError(_why_not(topic, error.args[0])) from None
            # Open a new client next time: an open one keeps to its controller even after another broker took over.
            self.__dict__.pop("_admin", None)
            raise self._listener.explain(error, f"cannot ask the broker for the topic {topic}") from None

    @cached_property
    def _admin(self) -> AdminClient:
        return open_client(AdminClient, for_producers(self._properties), self._listener)

    def bounds(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """The first and the next offset of every partition."""
        first, following = {}, {}
        for partition in self.partitions(topic):
            place = TopicPartition(topic, partition)
            try:
                ask_bounds = partial(self._consumer.get_watermark_offsets, place, timeout=TIMEOUT_SECONDS)
                first[partition], following[partition] = ask(ask_bounds)
            except KafkaException as error:
                raise self._listener.explain(error, f"cannot read the topic {topic}") from None
        return first, following

    def offsets_at(self, topic: str, moment: str) -> dict[int, int]:
        """The first offset at or after an ISO timestamp; the end of a partition that has none."""
        stamp = int(parse_moment(moment).timestamp() * 1000)
        asked = [TopicPartition(topic, partition, stamp) for partition in self.partitions(topic)]
        try:
            found = ask(partial(self._consumer.offsets_for_times, asked, timeout=TIMEOUT_SECONDS))
        except KafkaException as error:
            raise self._listener.explain(error, f"cannot look up {moment} in the topic {topic}") from None
        _, following = self.bounds(topic)
        return {item.partition: item.offset if item.offset >= 0 else following[item.partition] for item in found}

    def require_readable(self, topic: str) -> None:
        """Read from the topic once: Kafka shows its bounds also to a client that may only describe it."""
        partition = self.partitions(topic)[0]
        deadline = Deadline(TIMEOUT_SECONDS)
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_END)])
        try:
            while not deadline.has_passed:
                message = self._consumer.poll(_POLL_SECONDS)
                if message is None:
                    continue
                error = message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    return
                if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise InputError(_why_not(topic, error))
                if error.code() not in _NOT_YET and not is_about_group(error):
                    raise self._listener.explain(KafkaException(error), f"cannot read the topic {topic}")
        finally:
            self._consumer.unassign()
        raise SwitchyardError(f"the topic {topic} gave no answer for {TIMEOUT_SECONDS:g} s; is its broker up?")


def open_reader(properties: Mapping[str, str], own: dict[str, str], listener: ErrorListener) -> Consumer:
    """Open a consumer that reads only at positions that it is told, and that tells where a partition ends."""
    settings = {"enable.auto.commit": "false", "enable.partition.eof": "true"} | own
    return open_client(Consumer, base_properties(properties) | settings, listener)


def is_about_group(error: KafkaError) -> bool:
    """librdkafka looks for the coordinator of every group. A consumer that only reads at positions needs none."""
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def ask(question: Callable[[], T], deadline: Deadline | None = None) -> T:
    """Ask again while Kafka elects a leader or a coordinator, for instance for a topic that is new."""
    deadline = deadline or Deadline(TIMEOUT_SECONDS)
    while True:
        try:
            return question()
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or deadline.has_passed:
                raise
        time.sleep(0.1)


def base_properties(properties: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in properties.items() if not name.startswith("auto.offset")}
    return kept | {"socket.timeout.ms": "10000", "log.connection.close": "false"}


def _why_not(topic: str, error: KafkaError) -> str:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return f"the topic {topic} does not exist on the broker; create it or name another"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"the Kafka user may not read the topic {topic}; grant DESCRIBE and READ on it"
    return f"the topic {topic} cannot be used: {error.str()}"
