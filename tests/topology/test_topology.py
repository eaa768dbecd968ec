"""Switchyard on a cluster: drivers here, executors on two workers, tables in a bucket, three copies of each record.

The tests share the topology and its traffic, in order: a broker that was killed stays away.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError

import psycopg2

from switchyard.drivers.running_drivers import list_drivers, list_spares
from switchyard.drivers.supervisor_state import find_supervisor
from switchyard.kafka.control_topic import publish
from switchyard.layout import Layout
from switchyard.swap.history import Event
from switchyard.tables import store
from switchyard.tables.stable_names import newest_rows
from tests import model
from tests.integration.conftest import DAG_ID
from tests.integration.traffic import Traffic
from tests.topology.conftest import PAIRS, Topology
from tests.topology.kafka_cluster import COPIES, NODES
from tests.topology.spark_cluster import ask
from tests.waiting import eventually

SWAP = b'{"id": "to-the-second-pair", "usersTopic": "users-2", "accountsTopic": "accounts-2", "joinType": "inner"}'
AGAIN = b'{"id": "once-more", "joinType": "inner"}'


def read_last_batch(topology: Topology) -> int:
    status = topology.status()
    return int(status["batchId"]) if status["healthy"] else -1


def find_application(topology: Topology, name: str) -> str:
    found = topology.spark.applications()
    assert name in found, found
    return found[name]


def count_tasks(topology: Topology, application: str) -> dict[str, int]:
    """How many tasks each executor has finished, by its id. The spare may have been the first to take the port."""
    first = topology.settings.spark_ui_port or 0
    path = f"/api/v1/applications/{application}/executors"
    for port in (first, first + 1):
        with contextlib.suppress(HTTPError):
            found = ask(port, path)
            return {part["id"]: part["completedTasks"] for part in found if part["id"] != "driver"}
    raise AssertionError(f"no driver shows {application}")


def read_events(layout: Layout, generation: int, side: str) -> list[model.Event]:
    """What a generation has read of one topic. The moment of a record makes no difference to a left join."""
    rows = store.read_arrow(layout, f"{side}s", generation=generation, columns=["userId", "partition", "offset"])
    return [model.Event(side, row["userId"], 0, row["partition"], row["offset"]) for row in rows.to_pylist()]


def read_pairs(layout: Layout, generation: int) -> list[tuple[int | None, ...]]:
    columns = ["userPartition", "userOffset", "accountPartition", "accountOffset"]
    rows = store.read_arrow(layout, "joined", generation=generation, columns=columns).to_pylist()
    return [tuple(row[name] for name in columns) for row in rows]


def expected_pairs(layout: Layout, generation: int) -> list[tuple[int | None, ...]]:
    users, accounts = (read_events(layout, generation, side) for side in ("user", "account"))
    return [(*_place(user), *_place(account)) for user, account in model.join("left", users, accounts)]


def _place(event: model.Event | None) -> tuple[int | None, int | None]:
    return (event.partition, event.offset) if event else (None, None)


def test_executors_on_both_workers_do_the_work(topology: Topology, traffic: Traffic) -> None:
    eventually(lambda: read_last_batch(topology) >= 3, 120, 0.5)
    application = find_application(topology, "switchyard generation 1")
    executors = topology.spark.executors(application)
    assert [len(there) for there in executors] == [1, 1]
    done = count_tasks(topology, application)
    assert all(done[number] > 0 for there in executors for number in there), (executors, done)
    rows = newest_rows(topology.settings.layout, "final_ui", 5)
    assert len(rows) == 5
    assert {row["accountType"] for row in rows} <= {"numbered", None}


def test_no_demo_writes_into_the_topics_of_a_broker_of_ones_own(topology: Topology) -> None:
    state = find_supervisor(topology.settings.workspace)
    assert state is not None
    assert "scheduler" in state.components
    assert "demo" not in state.components


def test_airflow_keeps_its_records_in_postgres(topology: Topology) -> None:
    address = topology.database.address_file.read_text().replace("+psycopg2", "")
    with psycopg2.connect(address) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT run_id, state FROM dag_run WHERE dag_id = %s", (DAG_ID,))
        assert cursor.fetchall() == [("generation-1", "running")]
    connection.close()
    assert not (topology.settings.workspace.airflow / "airflow.db").exists()


def test_a_broker_is_killed_in_the_middle_of_a_swap(topology: Topology, traffic: Traffic) -> None:
    """One that leads a partition of the new users topic. A spare with separate executors takes the swap."""
    assert all(sorted(there) == list(NODES) for there in topology.brokers.copies("users"))
    settings, (old_users, new_users) = topology.settings, (PAIRS[0][0], PAIRS[1][0])
    spare = eventually(
        lambda: next((found for found in list_spares(settings.workspace) if found.is_ready), None), 300, 0.5
    )
    publish(topology.kafka, settings.control_topic, SWAP, "cli:test")
    eventually(lambda: topology.history.ledger().open_requests, 90, 0.5)
    leader = topology.brokers.copies(new_users)[0][0]
    topology.brokers.node(leader).kill()
    killed_at = datetime.now(UTC)

    outcomes = eventually(
        lambda: (now := topology.history.ledger().outcomes).get("to-the-second-pair") and now, 300, 0.5
    )
    assert outcomes["to-the-second-pair"].event is Event.APPLIED, outcomes
    assert spare.session in {one.session for one in list_drivers(settings.workspace) if one.generation == 2}
    status = topology.status()
    assert (status["usersTopic"], status["joinType"], status["generation"]) == (new_users, "inner", 2)
    for topic in (old_users, new_users):
        assert all(len(there) == COPIES - 1 and leader not in there for there in topology.brokers.copies(topic))
    moment = datetime.now(UTC)
    assert any(killed_at < sent < moment for _, _, _, sent in traffic.delivered), "nothing was sent after the kill"
    eventually(lambda: not traffic.find_lost(2, new_users, moment), 60, 1)
    # What was on its way at that moment may have come after the old generation had ended.
    assert traffic.find_lost(1, old_users, killed_at - timedelta(seconds=2)) == []
    assert traffic.read_errors == []


def test_commands_settle_without_the_broker(topology: Topology) -> None:
    publish(topology.kafka, topology.settings.control_topic, AGAIN, "cli:test")
    eventually(lambda: "once-more" in topology.history.ledger().outcomes, 90, 0.5)
    ledger = topology.history.ledger()
    assert ledger.outcomes["once-more"].event is Event.REFRESHED
    assert ledger.open_requests == []


def test_the_old_generation_has_the_rows_of_its_join(topology: Topology) -> None:
    """It went on while the broker was killed. Retired, it is whole at the newest version of each table."""
    eventually(lambda: topology.history.ledger().is_retired(1), 60, 0.5)
    found = Counter(read_pairs(topology.settings.layout, 1))
    assert found == Counter(expected_pairs(topology.settings.layout, 1))
    assert found.total() > 0


def test_spark_s_master_is_restarted_and_rows_move_again(topology: Topology, traffic: Traffic) -> None:
    """The driver goes on to report, without executors: that is not healthy, and the next attempt gets new ones."""
    attempt, restarted_at = topology.status()["attempt"], datetime.now(UTC)
    topology.spark.restart_master()
    status = eventually(lambda: "executors" in (now := topology.status())["reason"] and now, 120, 0.5)
    assert (status["healthy"], status["attempt"]) == (False, attempt)
    assert_told_in_time(topology, attempt, restarted_at)
    eventually(lambda: (now := topology.status())["healthy"] and now["attempt"] > attempt, 180, 0.5)
    moment = datetime.now(UTC)
    eventually(lambda: not traffic.find_lost(2, PAIRS[1][0], moment), 120, 1)
    application = find_application(topology, "switchyard generation 2")
    assert [len(there) for there in topology.spark.executors(application)] == [1, 1]
    rows = sorted(store.read_rows(topology.settings.layout, "logs"), key=lambda row: row["ts"])
    lines = [row["msg"] for row in rows if row["generation"] == 2]
    (told,) = [line for line in lines if line.startswith("the driver has had no executors for")]
    (ended,) = [line for line in lines if "failed and is started again: no progress: the driver has had no" in line]
    assert lines.index(told) < lines.index(ended)
    assert traffic.read_errors == []


def assert_told_in_time(topology: Topology, attempt: int, since: datetime) -> None:
    """Each report after the loss of the executors tells how long it is ago, and none has gone on to call that work."""
    rows = store.read_rows(topology.settings.layout, "progress", generation=2)
    lost = sorted(
        (row["at"], row["movedAt"])
        for row in rows
        if row["attempt"] == attempt and row["at"] > since and row["executors"] == 0
    )
    patience = topology.settings.limits.standstill
    assert [at for at, moved_at in lost if at - moved_at > patience]
    assert len({moved_at.replace(microsecond=0) for _, moved_at in lost}) <= 2, lost
    assert patience + timedelta(seconds=topology.settings.heartbeat_seconds) <= timedelta(seconds=30)


def test_the_audit_on_the_cluster_finds_the_new_generation_clean(topology: Topology) -> None:
    """A job beside the stream joins again what was read since before the kill, and by two attempts since then."""
    found = topology.json("audit")
    assert (found["clean"], found["generation"]) == (True, 2), found
    assert found["rowsCompared"] > 0


def test_no_password_is_in_a_log_or_on_a_command_line(topology: Topology) -> None:
    secrets = [text.encode() for text in topology.passwords]
    home = topology.settings.workspace.home
    tasks, executors = (home / "airflow" / "logs").rglob("*"), home.parent.rglob("stderr")
    logs = [path for path in (*home.parent.rglob("*.log"), *tasks, *executors) if path.is_file()]
    assert {"master.log", "postgres.log", "scheduler.log", "stderr"} <= {path.name for path in logs}
    assert [path for path in logs if any(secret in path.read_bytes() for secret in secrets)] == []
    commands = b"".join(read_commands())
    assert not any(secret in commands for secret in secrets)


def read_commands() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found
