"""What goes on while swaps happen: numbered events to every pair of topics, and a reader of `final_ui`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer

from switchyard.layout import Layout
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.stable_names import newest_rows

Delivery = tuple[str, int, int, datetime]


@dataclass
class Traffic:
    """Sends to all pairs all the time, and reads as a user of the tables would."""

    layout: Layout
    bootstrap: str
    pairs: list[tuple[str, str]]
    delivered: list[Delivery] = field(default_factory=list)
    """topic, partition, offset, and when it was sent: it came to Kafka later than that"""
    read_errors: list[str] = field(default_factory=list)
    generations_read: list[int] = field(default_factory=list)
    """Each generation that the reader saw, once for each change"""
    reads: int = 0
    burst: int = 1
    """How many users and accounts go to each pair, five times a second"""

    def produce(self, stop: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        number = 0
        while not stop.wait(0.2):
            for _ in range(self.burst):
                number += 1
                for users, accounts in self.pairs:
                    user = {"userId": f"n{number // 3}", "name": f"name {number}", "age": number}
                    account = {"userId": f"n{number // 3}", "accountType": "numbered", "balance": float(number)}
                    self._send(producer, users, user)
                    self._send(producer, accounts, account)
            producer.poll(0)
        assert producer.flush(30) == 0

    def _send(self, producer: Producer, topic: str, fields: dict[str, Any]) -> None:
        sent = datetime.now(UTC)

        def on_delivery(error: object, message: Any) -> None:
            if error is None:
                self.delivered.append((topic, message.partition(), message.offset(), sent))

        producer.produce(topic, json.dumps(fields).encode(), on_delivery=on_delivery)

    def read(self, stop: threading.Event) -> None:
        while not stop.wait(0.5):
            try:
                rows = newest_rows(self.layout, "final_ui", 5)
            except Exception as error:
                self.read_errors.append(repr(error))
                continue
            self.reads += 1
            generations = sorted({row["generation"] for row in rows})
            if len(generations) > 1:
                self.read_errors.append(f"rows of two generations in one read: {rows}")
            if generations and self.generations_read[-1:] != generations:
                self.generations_read += generations

    def flips_since(self, moment: datetime) -> list[int | None]:
        flips = HistoryStore(self.layout).ledger().flips
        before = [entry.generation for entry in flips if entry.at < moment][-1:]
        return before + [entry.generation for entry in flips if entry.at >= moment]

    def find_lost(self, generation: int, users_topic: str, until: datetime) -> list[Delivery]:
        """Events sent between the acceptance of the command and a moment that are not in the generation's table."""
        asked = next(
            entry.at
            for entry in HistoryStore(self.layout).ledger().entries
            if entry.event is Event.REQUESTED and entry.generation == generation
        )
        rows = store.read_arrow(self.layout, "users", generation=generation, columns=["partition", "offset"])
        there = set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        sent = [item for item in list(self.delivered) if item[0] == users_topic and asked < item[3] < until]
        return [item for item in sent if (item[1], item[2]) not in there]


@contextmanager
def running_traffic(
    layout: Layout, bootstrap: str, pairs: list[tuple[str, str]], with_reader: bool = True, burst: int = 1
) -> Iterator[Traffic]:
    traffic, stop = Traffic(layout, bootstrap, pairs, burst=burst), threading.Event()
    works = [traffic.produce, traffic.read] if with_reader else [traffic.produce]
    threads = [threading.Thread(target=work, args=(stop,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
