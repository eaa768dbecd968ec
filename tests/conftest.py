"""The real things, started once for all tests that need them: a broker, a Spark session."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from switchyard.layout import Layout
from switchyard.settings import Settings
from tests.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from switchyard.local.broker import Broker
    from tests.integration.conftest import Stack
    from tests.object_stores import RunningStore
    from tests.secured import Secured

# Every JVM of the tests lives for seconds or minutes: the quick compiler alone leaves the cores to the work.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    from tests.brokers import running_broker

    with running_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def topics(broker: Broker) -> Topics:
    return Topics.fresh(broker.bootstrap)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path / "root"))


@pytest.fixture
def settings(layout: Layout) -> Settings:
    return Settings(root=layout.root)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    from tests.object_stores import running_object_store

    with running_object_store(tmp_path_factory.mktemp("object-store")) as store:
        yield store


@pytest.fixture
def bucket(object_store: RunningStore, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A fresh root on the object store; this process and its children know the way to it."""
    from tests.object_stores import BUCKET

    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return Layout(f"s3://{BUCKET}/{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    from tests.secured import running_secured_broker

    with running_secured_broker(tmp_path_factory.mktemp("secured")) as secured:
        yield secured


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole of Switchyard; the tests that share it run one after the other."""
    from tests.integration.conftest import running_stack

    yield from running_stack(tmp_path_factory.mktemp("stack"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session configured like the driver's, with Delta's own reader on top to check our tables by."""
    from pyspark.sql import SparkSession

    from switchyard.drivers.jars import delta_jars, spark_jars
    from switchyard.drivers.java import find_java
    from switchyard.stream.session import session_conf

    os.environ.update(PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(find_java().path))
    conf = session_conf(Settings()) | {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.jars": ",".join(map(str, [*spark_jars(), *delta_jars()])),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    session = SparkSession.builder.master("local[2]").appName("tests").config(map=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    session.stop()
