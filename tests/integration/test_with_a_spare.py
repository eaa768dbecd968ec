"""The stack is stopped and started again: with a spare driver, with less patience with one that hangs, and with its
control topic on another cluster.

The last of the tests that share it, as it stays so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from switchyard.drivers import processes
from switchyard.drivers.running_drivers import list_drivers, list_spares
from switchyard.kafka.client_settings import write_properties
from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import ensure_topics
from switchyard.local import loopback
from switchyard.local.broker import Broker
from switchyard.settings import Settings
from switchyard.stream.audit import audit_at_newest
from switchyard.swap.history import Event
from tests.integration.conftest import DAG_ID, Stack
from tests.integration.test_stack import assert_clean
from tests.integration.traffic import running_traffic
from tests.waiting import eventually


@pytest.fixture(scope="module")
def control_kafka(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Another cluster, which has a control topic and none of the data."""
    broker = Broker(tmp_path_factory.mktemp("control") / "broker", loopback.pick_free_port())
    broker.start()
    try:
        broker.wait_until_ready()
        kafka = {"bootstrap.servers": broker.bootstrap}
        ensure_topics(kafka, [stack.settings.control_topic])
        yield kafka
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def spared(stack: Stack, control_kafka: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Stack:
    properties = tmp_path_factory.mktemp("settings") / "control.properties"
    write_properties(properties, control_kafka)
    changed = {
        "spare": True,
        "hung_seconds": Settings().hung_seconds,
        "kafka_control_properties": properties,
    }
    return Stack(stack.settings.model_copy(update=changed))


def test_down_leaves_no_process_and_up_goes_on_where_it_was(stack: Stack, spared: Stack, spark: SparkSession) -> None:
    before = stack.status()
    assert stack.run("down").returncode == 0
    assert stack.processes() == []
    eventually(lambda: stack.run("status").returncode == 1, 30, 1)
    assert "nothing is running" in stack.run("down").stdout
    again = spared.run("up", "--detach", "--no-demo")
    assert again.returncode == 0, again.stdout + again.stderr
    topics = ("--users-topic", before["usersTopic"], "--accounts-topic", before["accountsTopic"])
    stack.run("demo", "--seconds", "2", "--rate", "50", *topics)
    status = eventually(
        lambda: (now := stack.status())["healthy"] and now["batchId"] > before["batchId"] and now, 60, 1
    )
    assert status["generation"] == before["generation"]
    assert_clean(stack, spark)


def test_a_driver_that_hangs_is_ended_by_its_task_and_started_again(spared: Stack, spark: SparkSession) -> None:
    """Meanwhile the spare gets ready, which the next test waits for."""
    before = spared.status()
    pid = int(spared.settings.workspace.driver_pid(before["generation"]).read_text())
    session = processes.session_of(pid)
    assert session is not None
    for member in processes.find_members([session]):
        member.suspend()
    status = eventually(
        lambda: (now := spared.status())["healthy"] and now["attempt"] > before["attempt"] and now, 240, 1
    )
    assert status["generation"] == before["generation"]
    assert processes.find_members([session]) == []
    audit = audit_at_newest(lambda: spark, spared.settings)
    assert audit.is_clean, audit


def test_a_spare_takes_the_swap_and_is_replaced(
    spared: Stack, control_kafka: dict[str, str], spark: SparkSession
) -> None:
    """The message comes from the other cluster; one on the cluster of the data is not taken."""
    settings, workspace, active = spared.settings, spared.settings.workspace, spared.status()
    spare = eventually(lambda: next((found for found in list_spares(workspace) if found.is_ready), None), 120, 0.5)
    value = {"id": "with-a-spare", "joinType": "inner" if active["joinType"] == "left" else "left"}
    pair = (active["usersTopic"], active["accountsTopic"])
    with running_traffic(settings.layout, settings.bootstrap, [pair]) as traffic:
        publish(spared.kafka, settings.control_topic, b'{"id": "on-the-data-cluster", "joinType": "asof"}', "cli:test")
        publish(control_kafka, settings.control_topic, json.dumps(value).encode(), "cli:test")
        outcome = eventually(lambda: spared.history.ledger().outcomes.get("with-a-spare"), 120, 0.2)
        assert outcome.event is Event.APPLIED, outcome
        assert spare.session in {
            driver.session for driver in list_drivers(workspace) if driver.generation == outcome.generation
        }
        eventually(lambda: [found for found in list_spares(workspace) if found.session != spare.session], 60, 0.5)
    assert traffic.read_errors == []
    assert not spared.history.ledger().is_known("on-the-data-cluster")
    run = workspace.airflow / "logs" / f"dag_id={DAG_ID}" / f"run_id=generation-{outcome.generation}"
    eventually(lambda: [log for log in run.glob("task_id=stream/*.log") if "was a spare" in log.read_text()], 30)
    assert_clean(spared, spark)


def test_down_ends_the_spare_too(spared: Stack) -> None:
    assert spared.run("down").returncode == 0
    assert spared.processes() == []
    assert list(spared.settings.workspace.secrets.glob("kafka-*")) == []
