"""A users and an accounts topic on the real broker, and ways to fill them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from switchyard.kafka.topics import ensure_topics


@dataclass(frozen=True)
class Topics:
    bootstrap: str
    users: str
    accounts: str

    @classmethod
    def fresh(cls, bootstrap: str) -> Topics:
        """A new pair of topics with two partitions each."""
        pair = cls(bootstrap, f"users-{uuid.uuid4().hex[:8]}", f"accounts-{uuid.uuid4().hex[:8]}")
        pair.create(partitions=2)
        return pair

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}

    def create(self, partitions: int) -> None:
        ensure_topics(self.kafka, [self.users, self.accounts], partitions)

    def send_raw(self, topic: str, values: Iterable[bytes | None], partition: int = 0, ts_ms: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "message.max.bytes": 3_000_000})
        for value in values:
            producer.produce(topic, value, partition=partition, timestamp=ts_ms)
            producer.poll(0)
        assert producer.flush(30) == 0

    def send(self, events: Iterable[tuple[str, int, int, dict[str, Any]]]) -> None:
        """Sends (side, partition, timestamp in ms, fields) in order."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for side, partition, ts_ms, fields in events:
            topic = self.users if side == "user" else self.accounts
            producer.produce(topic, json.dumps(fields).encode(), partition=partition, timestamp=ts_ms)
            producer.poll(0)
        assert producer.flush(30) == 0
