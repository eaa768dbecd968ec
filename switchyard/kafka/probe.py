"""Asks the broker what lies at offsets that nobody has stored: nothing, a tombstone, or a record that was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from switchyard.deadline import Deadline
from switchyard.kafka.client_settings import name_group
from switchyard.kafka.clients import TIMEOUT_SECONDS, ErrorListener
from switchyard.kafka.topics import ask, is_about_group, open_reader
from switchyard.offsets import Gap

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Probed:
    lost: list[tuple[str, int, int]]
    """Topic, partition and offset of records that Kafka holds"""
    tombstones: int
    empty: int
    """Offsets without any record, as compaction and transactions leave them"""
    gone: int
    """Offsets that Kafka no longer holds, so that nobody can tell"""


def probe_gaps(properties: Mapping[str, str], gaps: Sequence[Gap]) -> Probed:
    listener = ErrorListener(properties)
    # The stream reads what an aborted transaction wrote, too.
    own = {"group.id": name_group("probe"), "auto.offset.reset": "error", "isolation.level": "read_uncommitted"}
    consumer = open_reader(properties, own, listener)
    lost: list[tuple[str, int, int]] = []
    tombstones = gone = 0
    try:
        for gap in gaps:
            held = _held_part(consumer, gap)
            gone += gap.size - held.size
            for offset, is_tombstone in _read(consumer, held) if held.size else ():
                if is_tombstone:
                    tombstones += 1
                else:
                    lost.append((gap.topic, gap.partition, offset))
    except KafkaException as error:
        consumer.poll(0)
        listener.raise_access_error()
        raise listener.explain(error, "cannot ask the broker for offsets that were not stored") from None
    finally:
        consumer.close()
    empty = sum(gap.size for gap in gaps) - gone - tombstones - len(lost)
    return Probed(lost, tombstones, empty, gone)


def _held_part(consumer: Consumer, gap: Gap) -> Gap:
    place = TopicPartition(gap.topic, gap.partition)
    low, high = ask(partial(consumer.get_watermark_offsets, place, timeout=TIMEOUT_SECONDS))
    first = min(max(gap.first, low), gap.end)
    return Gap(gap.topic, gap.partition, first, max(first, min(gap.end, high)))


def _read(consumer: Consumer, gap: Gap) -> list[tuple[int, bool]]:
    """The records in a gap, as offset and whether it is a tombstone."""
    found: list[tuple[int, bool]] = []
    consumer.assign([TopicPartition(gap.topic, gap.partition, gap.first)])
    deadline = Deadline(TIMEOUT_SECONDS)
    while True:
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            if deadline.has_passed:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            continue
        deadline.restart(TIMEOUT_SECONDS)
        error, offset = message.error(), message.offset() or 0
        if error is not None and is_about_group(error):
            continue
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if error is None and offset < gap.end:
            found.append((offset, message.value() is None))
        if error is not None or offset + 1 >= gap.end:
            consumer.unassign()
            return found
