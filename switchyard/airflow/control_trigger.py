"""What the triggerer runs for the control watcher: one consumer that reports new offsets of the control topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.apache.kafka.triggers.shared_stream import KafkaBrokerPayload, KafkaSharedStreamProducer
from asgiref.sync import sync_to_async

from switchyard.airflow.connection import read_control_kafka
from switchyard.kafka.groups import name_group
from switchyard.kafka.new_records import assign_new, open_watcher, poll_newest
from switchyard.settings import load_settings

RETRY_SECONDS = 2.0
REFRESH_SECONDS = 30.0


def open_control_watcher() -> Any:
    """Open a consumer with a separate group: what it commits must not move the offsets of the control loop."""
    from switchyard.tables.installation import installation_id

    # The ACLs of a broker may name groups that begin so: the name stays.
    group = name_group(f"bell-{installation_id(load_settings().layout)}")
    return open_watcher(read_control_kafka(), group)


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
            for place in await sync_to_async(poll_newest)(consumer, self.poll_timeout):
                yield place, KafkaBrokerPayload(*place)
