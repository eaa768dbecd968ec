"""The embedded database of Airflow, as a process: its data outlives it, and only its socket leads to it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from switchyard.local.airflow import describe_database
from switchyard.local.component import Component, ServerComponent
from switchyard.local.database import MOST_SOCKET_BYTES, Database
from switchyard.local.installation import Installation
from switchyard.local.kafka_settings import _may_have_control_connection
from switchyard.settings import Settings
from tests.waiting import eventually


def run(database: Database, statement: str) -> list[tuple[object, ...]]:
    with closing(database.connect()) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "database")
    made.start()
    try:
        made.wait_until_ready(60)
        yield made
    finally:
        made.stop()


def test_data_survives_a_stop_and_a_kill(database: Database) -> None:
    run(database, "create table kept as select 1 as number")
    Database(database.folder).stop()
    assert not database.is_running()
    database.start()
    database.wait_until_ready(60)
    run(database, "insert into kept values (2)")
    pid = database.find_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not database.is_running(), 30)
    component = ServerComponent(database)
    eventually(lambda: component.revive() is None and database.is_answering(), 60)
    assert run(database, "select number from kept order by 1") == [(1,), (2,)]
    assert component.restarts >= 1


def test_it_is_reached_through_its_socket_only(database: Database) -> None:
    assert run(database, "show listen_addresses") == [("",)]
    assert database.socket_folder.stat().st_mode & 0o077 == 0
    assert database.data.stat().st_mode & 0o077 == 0


def test_a_database_that_was_lost_is_prepared_again(database: Database) -> None:
    settings = Settings(root=str(database.folder.parent))
    before = describe_database(settings)
    database.stop()
    database.start()
    assert describe_database(settings) == before
    database.stop()
    shutil.rmtree(database.folder)
    database.start()
    assert describe_database(settings) != before


def test_a_stop_does_not_wait_for_clients(database: Database) -> None:
    with closing(database.connect()) as client:
        database.stop(20)
        assert not database.is_running()
        with pytest.raises(psycopg2.OperationalError), client.cursor() as cursor:
            cursor.execute("select 1")


def test_airflow_is_asked_for_a_control_connection_when_its_database_has_one(database: Database) -> None:
    """As a person adds one on the page of connections, beside the embedded broker too."""
    settings = Settings(root=str(database.folder.parent))
    run(database, "create table connection (conn_id text)")
    assert not _may_have_control_connection(settings), "no Airflow was set up here"
    settings.workspace.airflow.mkdir()
    (settings.workspace.airflow / "initialised").touch()
    for name, is_there in (("kafka_default", False), ("kafka_control", True)):
        run(database, f"insert into connection values ('{name}')")
        assert _may_have_control_connection(settings) is is_there
    database.stop()
    assert _may_have_control_connection(settings), "who cannot look has to ask"


def test_a_first_start_that_was_killed_is_begun_again_in_a_closed_folder_with_a_long_path(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    made = Database(closed / ("long" * 25) / "database")
    half = made.folder / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18")
    assert len(os.fsencode(made.socket_folder)) < MOST_SOCKET_BYTES
    made.start()
    try:
        made.wait_until_ready(60)
        assert run(made, "select 1") == [(1,)]
    finally:
        made.stop()
        made.socket_folder.rmdir()


def test_a_database_killed_while_airflow_is_set_up_in_it_is_started_again(tmp_path: Path) -> None:
    settings = Settings(root=str(tmp_path))
    installation, reported = Installation(settings, demo=False), list[Component]()
    component = installation.components()[0]
    database = Database(settings.workspace.database)
    others = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    component.start()
    try:
        with ThreadPoolExecutor(1) as starter:
            prepared = starter.submit(installation._prepare_database, reported.append)
            eventually(lambda: database.is_answering() and run(database, others) > [(0,)], 60, 0.02)
            pid = database.find_pid()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            prepared.result(120)
        assert component.restarts == 1
        assert run(database, "select conn_id from connection order by 1") == [("kafka_default",), ("spark_default",)]
        assert (settings.workspace.airflow / "initialised").read_text() == describe_database(settings)
    finally:
        component.finish(30)
