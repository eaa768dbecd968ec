"""The topology of docker-compose.yaml as processes: three brokers, a Spark master with two workers, PostgreSQL, an
object store, and the Airflow that `switchyard up` starts beside them. Each part is started once for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchyard.local import loopback
from switchyard.settings import Settings
from tests.integration.conftest import HEALTH_DAG, Stack
from tests.integration.traffic import Traffic, running_traffic
from tests.object_stores import BUCKET, LOGIN, RunningStore
from tests.topology.database import RunningDatabase, running_postgres
from tests.topology.kafka_cluster import KafkaCluster, running_kafka_cluster
from tests.topology.spark_cluster import SparkCluster, running_spark_cluster

PAIRS = [("users", "accounts"), ("users-2", "accounts-2")]


@dataclass(frozen=True)
class Topology(Stack):
    brokers: KafkaCluster
    spark: SparkCluster
    database: RunningDatabase
    store: RunningStore

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            **self.database.environment,
            **self.store.environment,
            "SWITCHYARD_HOME": str(self.settings.home),
            "SWITCHYARD_KAFKA_BOOTSTRAP": self.settings.bootstrap,
            "SWITCHYARD_SPARK_MASTER": self.settings.spark_master,
            "SWITCHYARD_SPARK_UI_PORT": str(self.settings.spark_ui_port),
            # Executors reach their driver by its address; there is one machine here.
            "SPARK_LOCAL_IP": loopback.HOST,
        }

    @property
    def passwords(self) -> list[str]:
        return [self.database.password, LOGIN["AWS_SECRET_ACCESS_KEY"]]


def _settings(folder: Path, brokers: KafkaCluster, spark: SparkCluster) -> Settings:
    return Settings(
        root=f"s3://{BUCKET}/topology",
        home=folder / "home",
        airflow_port=loopback.pick_free_port(),
        kafka_bootstrap=brokers.bootstrap,
        spark_master=spark.master,
        spark_ui_port=loopback.pick_free_port(),
        linger_seconds=2,
        ready_deadline_seconds=300,
        hung_seconds=75,
        spare=True,
    )


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory, object_store: RunningStore) -> Iterator[Topology]:
    folder = tmp_path_factory.mktemp("topology")
    (folder / "spark").mkdir()
    with ExitStack() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in object_store.environment.items():
            patch.setenv(name, value)
        with ThreadPoolExecutor() as at_once:
            parts = [
                at_once.submit(running.enter_context, part)
                for part in (
                    running_kafka_cluster(folder / "kafka"),
                    running_spark_cluster(folder / "spark"),
                    running_postgres(folder),
                )
            ]
        brokers, spark, database = (part.result() for part in parts)
        brokers.create_topics([name for pair in PAIRS for name in pair], partitions=2)
        brokers.create_topics(["control"], partitions=1)
        topology = Topology(_settings(folder, brokers, spark), brokers, spark, database, object_store)
        running.callback(topology.run, "down")
        started = topology.run("up", "--detach", timeout_seconds=360)
        assert started.returncode == 0, started.stdout + started.stderr
        # What they start each minute and each hour would share two cores with six Spark processes.
        for dag_id in (HEALTH_DAG, "switchyard_audit"):
            topology.api.set_paused(dag_id, True)
        yield topology


@pytest.fixture(scope="module")
def traffic(topology: Topology) -> Iterator[Traffic]:
    with running_traffic(topology.settings.layout, topology.settings.bootstrap, PAIRS) as traffic:
        yield traffic
