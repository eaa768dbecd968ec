"""The control topic: publish a message; read all that wait, from the last committed offset to the end.

The consumer assigns its positions and joins no group, so a consumer that died never keeps the next one waiting. An
offset is committed only after its message was handled: after a crash in between, the same message is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Producer, TopicPartition

from switchyard.deadline import Deadline
from switchyard.errors import AccessError, SwitchyardError
from switchyard.kafka.client_settings import for_producers, name_group
from switchyard.kafka.clients import ErrorListener, list_topics, open_client, quiet
from switchyard.kafka.topics import ask, base_properties, open_reader

T = TypeVar("T")
_NO_COORDINATOR = (KafkaError._TIMED_OUT, KafkaError._WAIT_COORD, KafkaError.REQUEST_TIMED_OUT)
_TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 1.0
_GROUP_SECONDS = 2.0
"""How long one call about the group may take before we look for its refusal"""
LAST_MS = 253_402_300_799_000
"""The end of the year 9999. A sender may claim any time, and Python has none after it."""
END_OF_TIME = datetime.max.replace(tzinfo=UTC)
MOST_BYTES = 4 * 2**20
"""Of each partition so much is held at once, however many messages wait"""
_RECORD_BYTES = 500
"""What a message takes in memory beside its value"""


@dataclass(frozen=True)
class ControlRecord:
    topic: str
    partition: int
    offset: int
    ts: datetime
    value: bytes | None
    requested_by: str | None = None


class _Listener(ErrorListener):
    def __init__(self, properties: Mapping[str, str], topic: str, group: str) -> None:
        super().__init__(properties)
        self._topic = topic
        self._group = group

    def explain(self, error: KafkaException, what: str) -> SwitchyardError:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return AccessError(f"the Kafka user may not read the topic {self._topic}; grant READ on it")
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return AccessError(
                f"the Kafka user may not use the group {self._group}; grant READ on groups with this beginning, or set "
                "SWITCHYARD_GROUP_PREFIX to one that is allowed"
            )
        return super().explain(error, what)


class ControlTopic(AbstractContextManager["ControlTopic"]):
    """`reader` is the id of an installation: each has separate committed offsets, and gets every message."""

    def __init__(self, properties: Mapping[str, str], topic: str, reader: str) -> None:
        self.topic = topic
        self._what = f"cannot read the control topic {topic}"
        group = name_group(f"control-{reader}")
        own = {
            "group.id": group,
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "error",
            # A second look would wait for the end of the last fetch of the first one: 0.4 s.
            "fetch.wait.max.ms": "20",
        }
        self._listener = _Listener(properties, topic, group)
        self._consumer = open_reader(properties, own, self._listener)
        self._bounds: dict[int, tuple[int, int]] = {}

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read_waiting(self, log_lost: Callable[[str], None]) -> Iterator[ControlRecord]:
        """Yield every message from the committed offsets to the present end, oldest first across partitions."""
        starts = self._starts(log_lost)
        while ends := {p: self._bounds[p][1] for p, start in starts.items() if start < self._bounds[p][1]}:
            self._consumer.assign([TopicPartition(self.topic, p, starts[p]) for p in ends])
            records, cut = self._read_part(ends)
            # A partition that is paused stays paused when it is assigned again.
            self._consumer.resume([TopicPartition(self.topic, p) for p in cut])
            # The caller commits each message, and nothing may be assigned while the group is asked: see _find_refusal.
            self._consumer.unassign()
            # What is later than the last message that was read of a cut partition waits for the rest of that one.
            for record in in_order(records, find_horizon(records, cut)):
                yield record
                starts[record.partition] = record.offset + 1
            held = {record.partition for record in records if record.offset >= starts[record.partition]}
            starts |= {p: end for p, end in ends.items() if p not in cut | held}

    def committed_offsets(self) -> dict[int, int]:
        """Return where each partition is read from next, without partitions that were never read."""
        found = self._committed(self._partitions())
        return {place.partition: int(place.offset) for place in found if place.offset != OFFSET_INVALID}

    def commit(self, record: ControlRecord) -> None:
        self._commit({record.partition: record.offset + 1})

    def commit_ends(self) -> None:
        """Commit where the last reading ended. Kafka forgets the offsets of a group after a week without a commit."""
        self._commit({partition: end for partition, (_, end) in self._bounds.items()})

    def _commit(self, next_offsets: Mapping[int, int]) -> None:
        if not next_offsets:
            return
        places = [TopicPartition(self.topic, partition, offset) for partition, offset in next_offsets.items()]
        commit = partial(self._consumer.commit, offsets=places, asynchronous=False)
        self._ask_group(commit, f"cannot commit the offsets of the topic {self.topic}")

    def _starts(self, log_lost: Callable[[str], None]) -> dict[int, int]:
        places = self._partitions()
        try:
            self._bounds = {
                place.partition: ask(partial(self._consumer.get_watermark_offsets, place, timeout=_TIMEOUT_SECONDS))
                for place in places
            }
        except KafkaException as error:
            raise self._listener.explain(error, self._what) from None
        return {place.partition: self._start(place, log_lost) for place in self._committed(places)}

    def _partitions(self) -> list[TopicPartition]:
        found = list_topics(self._consumer, self._listener, self._what, self.topic)[self.topic]
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            quiet.warning("there is no control topic %s yet, so nothing can be asked for by it", self.topic)
            return []
        if found.error is not None:
            raise self._listener.explain(KafkaException(found.error), self._what)
        return [TopicPartition(self.topic, partition) for partition in sorted(found.partitions)]

    def _committed(self, places: list[TopicPartition]) -> list[TopicPartition]:
        look = partial(self._consumer.committed, places, timeout=_GROUP_SECONDS)
        return list(self._ask_group(look, self._what)) if places else []

    def _ask_group(self, question: Callable[[], T], what: str) -> T:
        """Ask until the deadline. For a client that may not use its group the call only times out, as it finds no
        coordinator; the refusal comes with the next poll."""
        deadline = Deadline(_TIMEOUT_SECONDS)
        while True:
            try:
                return ask(question, deadline)
            except KafkaException as error:
                refusal = self._find_refusal() if error.args[0].code() in _NO_COORDINATOR else None
                if refusal is None and error.args[0].code() in _NO_COORDINATOR and not deadline.has_passed:
                    continue
                raise self._listener.explain(refusal or error, what) from None

    def _find_refusal(self) -> KafkaException | None:
        """Nothing is assigned while the group is asked, so a poll gives errors only."""
        event = self._consumer.poll(0)
        error = event.error() if event is not None else None
        return KafkaException(error) if error is not None and error.code() != KafkaError._PARTITION_EOF else None

    def _start(self, committed: TopicPartition, log_lost: Callable[[str], None]) -> int:
        low, high = self._bounds[committed.partition]
        if committed.offset == OFFSET_INVALID:
            return low
        if committed.offset > high:
            log_lost(f"the control topic {self.topic} was deleted and created again: it is read from its beginning")
            return low
        if committed.offset < low:
            count = low - committed.offset
            log_lost(f"Kafka has deleted {count} offsets of the control topic {self.topic} before they were read")
            return low
        return int(committed.offset)

    def _read_part(self, ends: Mapping[int, int]) -> tuple[list[ControlRecord], set[int]]:
        """Read up to these ends, but of each partition a bounded part; return also the partitions that were cut.

        Offsets may have holes, also before the end, so the end-of-partition event counts as the last offset does.
        """
        deadline = Deadline(_TIMEOUT_SECONDS)
        records: list[ControlRecord] = []
        taken = dict.fromkeys(ends, 0)
        unread, cut = set(ends), set[int]()
        while unread:
            message = self._consumer.poll(_POLL_SECONDS)
            if message is None:
                if deadline.has_passed:
                    raise SwitchyardError(f"the control topic {self.topic} gave nothing for {_TIMEOUT_SECONDS:g} s")
                continue
            deadline.restart(_TIMEOUT_SECONDS)
            error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise self._listener.explain(KafkaException(error), self._what)
            if partition not in unread:
                continue
            if error is None and offset < ends[partition]:
                records.append(_record(message))
                taken[partition] += len(records[-1].value or b"") + _RECORD_BYTES
            if error is not None or offset + 1 >= ends[partition]:
                unread.discard(partition)
            elif taken[partition] >= MOST_BYTES:
                self._consumer.pause([TopicPartition(self.topic, partition)])
                unread.discard(partition)
                cut.add(partition)
        return records, cut


def in_order(records: list[ControlRecord], until: datetime = END_OF_TIME) -> list[ControlRecord]:
    """Sort by time across partitions, but keep the order within each, as offsets are committed in order."""
    ordered: list[tuple[datetime, ControlRecord]] = []
    for partition in sorted({record.partition for record in records}):
        latest = datetime.min.replace(tzinfo=UTC)
        for record in sorted((r for r in records if r.partition == partition), key=lambda r: r.offset):
            latest = max(latest, record.ts)
            ordered.append((latest, record))
    ordered.sort(key=lambda item: (item[0], item[1].partition, item[1].offset))
    return [record for at, record in ordered if at <= until]


def find_horizon(records: list[ControlRecord], cut: set[int]) -> datetime:
    """Return the time up to which no partition has a message that was not read."""
    return min((max(record.ts for record in records if record.partition == p) for p in cut), default=END_OF_TIME)


def _record(message: object) -> ControlRecord:
    """The key names the sender. Never ask for headers: one whose name is not UTF-8 crashes the process, as
    confluent-kafka 2.16 returns a list with a missing name."""
    key = message.key()  # type: ignore[attr-defined]
    stamp = min(max(0, message.timestamp()[1]), LAST_MS)  # type: ignore[attr-defined]
    return ControlRecord(
        message.topic(),  # type: ignore[attr-defined]
        message.partition(),  # type: ignore[attr-defined]
        message.offset(),  # type: ignore[attr-defined]
        datetime.fromtimestamp(stamp / 1000, UTC),
        message.value(),  # type: ignore[attr-defined]
        key.decode(errors="replace") if isinstance(key, bytes) else None,
    )


def publish(properties: Mapping[str, str], topic: str, value: bytes | None, requested_by: str) -> tuple[int, int]:
    """Send one control message and wait until the broker has it; return its partition and offset."""
    reports: list[Any] = []
    settings = base_properties(properties) | {
        "enable.idempotence": "true",
        # The connection may hold other values, pasted from another producer, that do not go with idempotence.
        "acks": "all",
        "retries": "10",
        "max.in.flight.requests.per.connection": "5",
        "linger.ms": "0",
        "message.timeout.ms": f"{_TIMEOUT_SECONDS * 1000:.0f}",
    }
    listener = ErrorListener(properties)
    producer = open_client(Producer, for_producers(settings), listener)
    producer.produce(topic, value, key=requested_by.encode(), on_delivery=lambda *report: reports.append(report))
    deadline = Deadline(_TIMEOUT_SECONDS + 5)
    while producer.flush(_POLL_SECONDS) and not deadline.has_passed:
        listener.raise_access_error()
    error, message = reports[0] if reports else (None, None)
    if error is not None or message is None:
        raise _not_sent(topic, error, listener)
    return message.partition(), message.offset()


def _not_sent(topic: str, error: KafkaError | None, listener: ErrorListener) -> SwitchyardError:
    if error is not None and error.code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ):
        return AccessError(f"the Kafka user may not write to the topic {topic}; grant WRITE on it")
    reason = listener.hide(error.str()) if error is not None else "the broker did not answer in time"
    return SwitchyardError(f"the message did not reach the topic {topic}: {reason}; is the broker up?")
