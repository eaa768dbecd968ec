"""Check that an attempt can go on where the one before it stopped: starting elsewhere would lose records silently.

Runs before the Spark session starts, so that an attempt which cannot go on fails within seconds.
"""

from __future__ import annotations

import logging

from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka.topics import TopicReader
from switchyard.layout import BIG_TABLES, Layout, batch_app_id
from switchyard.offsets import Offsets, describe_missing, from_json
from switchyard.spec import GenerationSpec
from switchyard.stream.offset_log import ADVICE, read_batch_end
from switchyard.tables import store
from switchyard.tables.progress import newest_progress

log = logging.getLogger("switchyard.driver")


def check_continuity(layout: Layout, spec: GenerationSpec, reader: TopicReader) -> None:
    """Raise when the checkpoint does not belong to the tables, or Kafka no longer has the next records."""
    last = newest_progress(layout, spec.generation)
    done = from_json(last.endOffsets) if last and last.endOffsets else None
    check_checkpoint(layout, spec, last.batchId if last and done else None, done)
    try:
        check_topics(spec, reader)
        check_records(spec, done or spec.startOffsets, reader)
    except InputError:
        raise
    except SwitchyardError as error:
        log.warning("%s; the stream waits for it", error)


def check_checkpoint(layout: Layout, spec: GenerationSpec, batch_id: int | None, done: Offsets | None) -> None:
    """Raise unless the checkpoint ends the newest batch where the tables do.

    The tables know batches by number only: with another checkpoint, the same number would mean other records, and the
    replay of a committed batch would be skipped as done.
    """
    written = [store.open_table(layout, name).transaction_version(batch_app_id(spec.generation)) for name in BIG_TABLES]
    newest = max([number for number in [*written, batch_id] if number is not None], default=None)
    if newest is None:
        return
    checkpoint, topics = layout.checkpoint(spec.generation), (spec.usersTopic, spec.accountsTopic)
    ends = {number: read_batch_end(checkpoint, number, topics) for number in {newest, batch_id} if number is not None}
    if batch_id is not None and ends[batch_id] != done:
        raise SwitchyardError(
            f"the checkpoint of generation {spec.generation} is damaged: its batch {batch_id} does not end where the "
            f"tables say; {ADVICE}"
        )


def check_topics(spec: GenerationSpec, reader: TopicReader) -> None:
    """Raise when a topic was deleted and created again: it has other records at the same offsets."""
    for topic, topic_id in spec.topicIds.items():
        if reader.topic_id(topic) != topic_id:
            raise InputError(
                f"the topic {topic} was deleted and created again since generation {spec.generation} was asked for: "
                f"its old records are gone, and the new ones have not been read from their beginning; {ADVICE}"
            )


def check_records(spec: GenerationSpec, position: Offsets, reader: TopicReader) -> None:
    firsts = {topic: reader.bounds(topic)[0] for topic in (spec.usersTopic, spec.accountsTopic)}
    if gone := describe_missing(position, firsts):
        raise InputError(
            f"Kafka no longer holds records that generation {spec.generation} still has to read: {gone}; {ADVICE}"
        )
