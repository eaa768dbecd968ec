"""Three real brokers that keep three copies of everything, each of them the whole of a node: broker and controller."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from switchyard.local import broker_config, loopback
from switchyard.local.broker import Broker
from tests.waiting import eventually

NODES = (1, 2, 3)
COPIES = len(NODES)
LEAST_COPIES = 2


class Node(Broker):
    """The embedded broker, told of the others."""

    def __init__(self, folder: Path, number: int, controllers: dict[int, int], cluster: str) -> None:
        super().__init__(folder, loopback.pick_free_port())
        self.number = number
        self._controllers = controllers
        self._cluster = cluster

    def cluster_id(self) -> str:
        return self._cluster

    def _write_config(self) -> None:
        super()._write_config()
        config = broker_config.build(self.port, self._controllers[self.number], self.data) | {
            "node.id": str(self.number),
            "controller.quorum.voters": ",".join(
                f"{node}@{loopback.HOST}:{port}" for node, port in self._controllers.items()
            ),
            "min.insync.replicas": str(LEAST_COPIES),
        }
        for name in config:
            if name.endswith("replication.factor"):
                config[name] = str(COPIES)
            elif name.endswith("min.isr"):
                config[name] = str(LEAST_COPIES)
        self.config.write_text("".join(f"{name}={value}\n" for name, value in config.items()))

    def kill(self) -> None:
        """As a machine that loses its power."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


@dataclass(frozen=True)
class KafkaCluster:
    nodes: Sequence[Node]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def create_topics(self, names: Sequence[str], partitions: int) -> None:
        wanted = [NewTopic(name, num_partitions=partitions, replication_factor=COPIES) for name in names]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for outcome in admin.create_topics(wanted).values():
            outcome.result(60)

    def copies(self, topic: str) -> list[list[int]]:
        """The nodes that hold each partition and have all of it; the one that leads it comes first."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        found = admin.list_topics(topic, 30).topics[topic]
        partitions = [found.partitions[number] for number in sorted(found.partitions)]
        return [[part.leader, *sorted(set(part.isrs) - {part.leader})] for part in partitions]

    def node(self, number: int) -> Node:
        return next(node for node in self.nodes if node.number == number)


@contextmanager
def running_kafka_cluster(folder: Path) -> Iterator[KafkaCluster]:
    controllers = {number: loopback.pick_free_port() for number in NODES}
    cluster = Broker(folder, 0).cluster_id()
    nodes = [Node(folder / str(number), number, controllers, cluster) for number in NODES]
    try:
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(Node.start, nodes))
        for node in nodes:
            node.wait_until_ready(90)
        admin = AdminClient({"bootstrap.servers": nodes[0].bootstrap})
        eventually(lambda: len(admin.list_topics(timeout=30).brokers) == len(nodes), 60)
        yield KafkaCluster(nodes)
    finally:
        for node in nodes:
            # What they hold is thrown away.
            if node.is_running():
                node.kill()
