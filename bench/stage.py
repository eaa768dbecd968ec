"""What the measurements play on: a broker for one run, topics filled with people's events, a Spark session."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from switchyard.drivers.jars import delta_jars, spark_jars
from switchyard.drivers.java import find_java
from switchyard.kafka.demo import draw_records
from switchyard.kafka.topics import ensure_topics
from switchyard.local import loopback
from switchyard.local.broker import Broker
from switchyard.records import LEFT
from switchyard.settings import Settings
from switchyard.stream.session import session_conf

PARTITIONS = 2
BODIES = 1009
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""Spark's own Delta writer, for baselines only."""


@contextmanager
def running_broker() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder and the settings of a broker that live as long as one measurement."""
    with tempfile.TemporaryDirectory() as name:
        broker = Broker(Path(name) / "broker", loopback.pick_free_port())
        broker.start()
        try:
            broker.wait_until_ready(60)
            yield Path(name), {"bootstrap.servers": broker.bootstrap}
        finally:
            broker.stop()


def start_spark(settings: Settings) -> SparkSession:
    os.environ.update(PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(find_java().path))
    conf = session_conf(settings) | {
        "spark.jars": ",".join(map(str, [*spark_jars(), *delta_jars()])),
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        **DELTA_CONF,
    }
    spark = SparkSession.builder.master("local[2]").appName("bench").config(map=dict(conf)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Filler:
    """Sends events of people to two topics, as fast as the broker takes them or at a pace that the caller keeps."""

    def __init__(self, bootstrap: str, users: str, accounts: str, seed: int = 1) -> None:
        ensure_topics({"bootstrap.servers": bootstrap}, [users, accounts], PARTITIONS)
        # Quiet: the broker of a measurement ends before its last producer does.
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 262_144, "log_level": 0}
        self._producer = Producer(settings)
        self._draw = random.Random(seed)
        self._topics = {True: users, False: accounts}
        self._bodies = {is_user: self._draw_bodies(is_user) for is_user in (True, False)}
        self.sent = 0

    def _draw_bodies(self, is_user: bool) -> list[str]:
        """All of an event but its userId. Drawn once: to draw and to encode each event is slower than the broker."""
        drawn = (record.fields for record in draw_records(self._draw) if (record.side == LEFT) is is_user)
        fields = ({name: value for name, value in one.items() if name != "userId"} for one in islice(drawn, BODIES))
        return [json.dumps(one)[1:] for one in fields]

    def send(self, people: range, user_share: float, events: int) -> None:
        """So many events of random people; the share is how many of them are users."""
        draw, first, count = self._draw.random, people.start, len(people)
        for _ in range(events):
            number, before = first + int(draw() * count), self.sent
            self.sent += 1
            is_user = int(self.sent * user_share) > int(before * user_share)
            body = self._bodies[is_user][self.sent % BODIES]
            self._send(self._topics[is_user], f'{{"userId": "user-{number}", {body}'.encode())
            if self.sent % 1000 == 0:
                self._producer.poll(0)

    def _send(self, topic: str, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(topic, value, partition=(self.sent >> 1) % PARTITIONS)
                return
            except BufferError:
                self._producer.poll(0.1)

    def flush(self) -> None:
        left = self._producer.flush(120)
        if left:
            raise SystemExit(f"the broker did not take {left} records within two minutes")


def fill_topics(bootstrap: str, records: int, users: str = "users", accounts: str = "accounts") -> None:
    """As many users as accounts, of as many people as there are records: some have both, some have none."""
    filler = Filler(bootstrap, users, accounts)
    filler.send(range(records), 0.5, records)
    filler.flush()
