"""The stack is stopped and started again: with a spare driver, with less patience with one that hangs, and with its
control topic on another cluster, which wants a login.

The last of the tests that share it, as it stays so.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from switchyard.drivers import processes
from switchyard.drivers.running_drivers import list_drivers, list_spares
from switchyard.drivers.supervisor_state import find_supervisor
from switchyard.kafka.client_settings import client_properties
from switchyard.kafka.control_topic import ControlTopic, publish
from switchyard.settings import Settings
from switchyard.stream.audit import audit_at_newest
from switchyard.swap.history import Event
from switchyard.tables.installation import installation_id
from tests.integration.conftest import DAG_ID, Stack
from tests.integration.faults import kill_database
from tests.integration.test_health import AUDIT_DAG
from tests.integration.test_stack import assert_clean
from tests.integration.traffic import running_traffic
from tests.secured import CONTROL, Secured, find_canary, write_pasted
from tests.waiting import eventually


@pytest.fixture(scope="module")
def control_kafka(stack: Stack, secured: Secured) -> dict[str, str]:
    """Another cluster, which has a control topic and none of the data. Its tokens name the client in no other claim
    than `client_id`."""
    assert stack.settings.control_topic == CONTROL
    return client_properties(secured.logins["OAUTHBEARER"].right)


@pytest.fixture(scope="module")
def spared(
    stack: Stack, secured: Secured, control_kafka: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Stack:
    properties = tmp_path_factory.mktemp("settings") / "control.properties"
    write_pasted(properties, secured.logins["OAUTHBEARER"].right)
    assert "sasl.oauthbearer.sub.claim.name=client_id\n" in properties.read_text()
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
    with ThreadPoolExecutor(1) as starter:
        starting = starter.submit(spared.run, "up", "--detach", "--no-demo")
        kill_database_during_start(spared)
        again = starting.result()
    assert again.returncode == 0, again.stdout + again.stderr
    started = find_supervisor(stack.settings.workspace)
    assert started is not None
    assert started.components["database"].restarts == 1
    topics = ("--users-topic", before["usersTopic"], "--accounts-topic", before["accountsTopic"])
    stack.run("demo", "--seconds", "2", "--rate", "50", *topics)
    status = eventually(
        lambda: (now := stack.status())["healthy"] and now["batchId"] > before["batchId"] and now, 60, 1
    )
    assert status["generation"] == before["generation"]
    assert_clean(stack, spark)


def kill_database_during_start(stack: Stack) -> None:
    """When the parts of Airflow were just started."""

    def is_under_way() -> bool:
        state = find_supervisor(stack.settings.workspace)
        return state is not None and state.components["scheduler"].pid is not None

    eventually(is_under_way, 60, 0.05)
    kill_database(stack)


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


def test_a_spare_takes_the_swap_and_is_replaced(spared: Stack, spark: SparkSession) -> None:
    """The message comes from the other cluster; one on the cluster of the data is not taken."""
    settings, workspace, active = spared.settings, spared.settings.workspace, spared.status()
    spare = eventually(lambda: next((found for found in list_spares(workspace) if found.is_ready), None), 120, 0.5)
    join_type = "inner" if active["joinType"] == "left" else "left"
    pair = (active["usersTopic"], active["accountsTopic"])
    with running_traffic(settings.layout, settings.bootstrap, [pair]) as traffic:
        publish(spared.kafka, settings.control_topic, b'{"id": "on-the-data-cluster", "joinType": "asof"}', "cli:test")
        sent = spared.run("swap", "--id", "with-a-spare", "--join-type", join_type)
        assert sent.returncode == 0, sent.stdout + sent.stderr
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


def test_all_that_read_the_control_topic_have_logged_in_with_a_token(
    spared: Stack, secured: Secured, control_kafka: dict[str, str]
) -> None:
    """Watcher, rounds, audit and command line, each with the settings as they were pasted."""
    installation = installation_id(spared.settings.layout)
    wanted = {f"switchyard-bell-{installation}", f"switchyard-control-{installation}"}
    admin = AdminClient(secured.admin)
    eventually(lambda: wanted <= {one.group_id for one in admin.list_consumer_groups().result(30).valid}, 60, 1)
    with ControlTopic(control_kafka, CONTROL, installation) as control:
        assert sum(control.committed_offsets().values()) == 1
    spared.api.trigger(AUDIT_DAG, "with-a-token", {})
    eventually(lambda: spared.api.run_state(AUDIT_DAG, "with-a-token") in ("success", "failed"), 240, 1)
    assert spared.task_state(AUDIT_DAG, "with-a-token", "commands") == "success"
    found = {one["check"]: one for one in json.loads(spared.run("doctor", "--json").stdout)["checks"]}
    assert found["control topic"]["ok"], found["control topic"]
    assert found["control topic"]["finding"] == f"{CONTROL} can be read on its own cluster, partitions: 2"
    assert secured.provider.scopes
    assert set(secured.provider.scopes) == {control_kafka["sasl.oauthbearer.scope"]}


def test_down_ends_the_spare_too_and_leaves_no_secret(spared: Stack) -> None:
    assert spared.run("down").returncode == 0
    assert spared.processes() == []
    assert list(spared.settings.workspace.secrets.glob("kafka-*")) == []
    root = Path(spared.settings.root)
    assert {"tables", "process-logs", "airflow"} <= {folder.name for folder in root.iterdir()}
    assert find_canary(root) == []
