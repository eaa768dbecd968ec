"""The watcher of the control topic: it takes a message at once, and its event starts a round of `switchyard_control`.

Airflow's own Kafka trigger is not used, because it stores whole messages as asset events, fails on a message that is
not UTF-8, and sees nothing for the session timeout of its group after a broker or a triggerer was killed (provider
apache-kafka 2.1.0; try it again when it assigns partitions itself). DAG files import this module; only the triggerer
imports `control_trigger.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent


class ControlTopicWatcher(BaseEventTrigger):
    def __init__(self, *, topics: list[str], kafka_config_id: str = "kafka_default") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topics = sorted(topics)
        self.kafka_config_id = kafka_config_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"topics": self.topics, "kafka_config_id": self.kafka_config_id},
        )

    def shared_stream_key(self) -> Hashable:
        return "switchyard-control-watcher", tuple(self.topics), self.kafka_config_id

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        from switchyard.airflow.control_trigger import ControlTopicProducer

        return ControlTopicProducer(**kwargs)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for topic, partition, offset, settled in shared_stream:
            place = {"topic": topic, "partition": partition, "offset": offset}
            yield TriggerEvent(place | {"settled": settled})  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        raise NotImplementedError("the triggerer runs the watcher as a shared stream")
        yield
