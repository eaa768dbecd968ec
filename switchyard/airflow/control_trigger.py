"""What the triggerer runs for the control watcher: one consumer that sees new messages, takes them, and reports them.

To take them here costs no start of a process. What fails here is left to the round that the event starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.apache.kafka.triggers.shared_stream import KafkaBrokerPayload, KafkaSharedStreamProducer
from asgiref.sync import sync_to_async

from switchyard.airflow.connection import read_control_kafka, read_kafka
from switchyard.errors import SwitchyardError
from switchyard.kafka.client_settings import name_group
from switchyard.kafka.new_records import assign_new, open_watcher, poll_newest
from switchyard.settings import load_settings

RETRY_SECONDS = 2.0
REFRESH_SECONDS = 30.0
TAKE_SECONDS = 5.0
log = logging.getLogger(__name__)


def open_control_watcher() -> Any:
    """Open a consumer with a separate group: what it commits must not move the offsets of the control loop."""
    from switchyard.tables.installation import installation_id

    # The ACLs of a broker may name groups that begin so: the name stays.
    group = name_group(f"bell-{installation_id(load_settings().layout)}")
    return open_watcher(read_control_kafka(), group)


def take_now() -> dict[str, str]:
    """Take the messages that wait, and let a spare driver begin; return what became of each, by its swap id."""
    from switchyard.airflow.spare_orders import give_early
    from switchyard.swap.control_loop import take_messages

    settings = load_settings()
    try:
        kafka = read_kafka()
        done = take_messages(settings, kafka, read_control_kafka())
    except Exception as error:
        # Whatever it is, the watcher must go on. The text of another error may quote a message.
        reason = error if isinstance(error, SwitchyardError) else type(error).__name__
        log.warning("The next round takes the messages: %s", reason)
        return {}
    try:
        if done.run is not None and settings.spare:
            give_early(settings, kafka, done.run)
    except Exception as error:
        log.warning("The round gives the order to the spare driver: %s", type(error).__name__)
    return done.settled


class ControlTopicProducer(KafkaSharedStreamProducer):
    """Survive a missing topic and a broker that is down. The base class commits after the event was stored."""

    async def open_stream(self) -> AsyncIterator[tuple[Any, KafkaBrokerPayload]]:
        consumer = self._consumer = await sync_to_async(open_control_watcher)()
        loop = asyncio.get_running_loop()
        assigned: set[tuple[str, int]] = set()
        refresh_at = 0.0
        while True:
            if loop.time() >= refresh_at:
                assigned = await sync_to_async(assign_new)(consumer, self.topics, assigned)
                refresh_at = loop.time() + (REFRESH_SECONDS if assigned else RETRY_SECONDS)
            if not assigned:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            places = await sync_to_async(poll_newest)(consumer, self.poll_timeout)
            settled = await self._take() if places else {}
            for place in places:
                yield (*place, settled), KafkaBrokerPayload(*place)
                settled = {}

    async def _take(self) -> dict[str, str]:
        taking = asyncio.ensure_future(sync_to_async(take_now)())
        # Where a broker or a store hangs, the event must not wait for it: the round shows what is wrong.
        done, _ = await asyncio.wait({taking}, timeout=TAKE_SECONDS)
        return taking.result() if done else {}
