"""Where the command line has its Kafka settings from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchyard.errors import InputError
from switchyard.kafka.client_settings import write_properties
from switchyard.local.airflow import airflow_environment, describe_database
from switchyard.local.kafka_settings import find_control_kafka, find_kafka
from switchyard.settings import Settings

LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "hunter2",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_properties(tmp_path / "login", LOGIN)
    return tmp_path / "login"


def settings_of(root: Path, bootstrap: str | None = "b:1", file: Path | None = None) -> Settings:
    return Settings(root=str(root), kafka_port=1234, kafka_bootstrap=bootstrap, kafka_properties=file)


def test_the_embedded_broker_needs_no_login(tmp_path: Path) -> None:
    assert find_kafka(settings_of(tmp_path, None)) == {"bootstrap.servers": "127.0.0.1:1234"}


def test_a_broker_of_ones_own_without_a_file_and_without_an_airflow_to_ask(tmp_path: Path) -> None:
    assert find_kafka(settings_of(tmp_path)) == {"bootstrap.servers": "b:1"}


def test_the_file_has_the_login_and_the_setting_the_address(tmp_path: Path, file: Path) -> None:
    assert find_kafka(settings_of(tmp_path, file=file)) == {"bootstrap.servers": "b:1", **LOGIN}
    write_properties(file, {**LOGIN, "bootstrap.servers": "b:1"})
    assert find_kafka(settings_of(tmp_path, file=file)) == {"bootstrap.servers": "b:1", **LOGIN}


def test_two_addresses_or_none_are_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(InputError, match="set SWITCHYARD_KAFKA_BOOTSTRAP to its address too"):
        find_kafka(settings_of(tmp_path, None, file))
    write_properties(file, {**LOGIN, "bootstrap.servers": "other:1"})
    with pytest.raises(InputError, match=r"^bootstrap\.servers in .* is not SWITCHYARD_KAFKA_BOOTSTRAP: remove it"):
        find_kafka(settings_of(tmp_path, file=file))


def test_what_is_wrong_in_the_file_is_said_without_the_value(tmp_path: Path, file: Path) -> None:
    write_properties(file, {**LOGIN, "sasl.mechanisms": "hunter2"})
    with pytest.raises(InputError, match=r"the Kafka setting sasl\.mechanisms must be one of") as refused:
        find_kafka(settings_of(tmp_path, file=file))
    assert "hunter2" not in str(refused.value)


def test_airflow_is_told_the_path_and_prepared_again_when_the_file_changes(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_of(tmp_path, file=Path("login"))
    environment = airflow_environment(settings, base={})
    assert environment["SWITCHYARD_KAFKA_PROPERTIES"] == str(file)
    assert "hunter2" not in str(environment)
    before = describe_database(settings)
    assert describe_database(settings) == before
    write_properties(file, {**LOGIN, "sasl.password": "hunter3!"})
    assert describe_database(settings) != before
    assert "SWITCHYARD_KAFKA_PROPERTIES" not in airflow_environment(settings_of(tmp_path), base={})


def test_the_control_topic_is_where_the_data_is_unless_a_file_or_a_connection_says_otherwise(
    tmp_path: Path, file: Path
) -> None:
    settings = settings_of(tmp_path, None)
    assert find_control_kafka(settings) == find_kafka(settings)
    elsewhere = settings.model_copy(update={"kafka_control_properties": file})
    with pytest.raises(InputError, match=r"the connection kafka_control has no bootstrap\.servers"):
        find_control_kafka(elsewhere)
    write_properties(file, {**LOGIN, "bootstrap.servers": "c:1"})
    assert find_control_kafka(elsewhere) == {"bootstrap.servers": "c:1", **LOGIN}
    assert find_kafka(elsewhere) == {"bootstrap.servers": "127.0.0.1:1234"}
    assert airflow_environment(elsewhere, base={})["SWITCHYARD_KAFKA_CONTROL_PROPERTIES"] == str(file)
    assert describe_database(elsewhere) != describe_database(settings)
    for wrong in ({"sasl.mechanisms": "hunter2"}, {"sasl.jaas.config": "hunter2"}):
        write_properties(file, {**LOGIN, "bootstrap.servers": "c:1", **wrong})
        with pytest.raises(InputError, match=r"\(connection kafka_control\)$"):
            find_control_kafka(elsewhere)


# Connections that a real Airflow is asked for. It needs no database as long as it finds them elsewhere.


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of an Airflow that `up` has set up."""
    home = tmp_path / "airflow"
    home.mkdir()
    (home / "initialised").touch()
    return home


def connect(monkeypatch: pytest.MonkeyPatch, name: str, extra: dict[str, str]) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_KAFKA_{name}", json.dumps({"conn_type": "kafka", "extra": extra}))


BROKEN = {"bootstrap.servers": "x:1", **LOGIN, "sasl.mechanisms": "hunter2"}


def test_a_broken_connection_is_no_obstacle_to_the_other(
    tmp_path: Path, airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    connect(monkeypatch, "DEFAULT", {"bootstrap.servers": "b:1"})
    connect(monkeypatch, "CONTROL", BROKEN)
    assert find_kafka(settings) == {"bootstrap.servers": "b:1"}
    with pytest.raises(InputError, match=r"sasl\.mechanisms must be one of .* \(connection kafka_control\)$"):
        find_control_kafka(settings)
    connect(monkeypatch, "DEFAULT", BROKEN)
    connect(monkeypatch, "CONTROL", {"bootstrap.servers": "c:1"})
    assert find_control_kafka(settings) == {"bootstrap.servers": "c:1"}
    with pytest.raises(InputError, match=r"\(connection kafka_default\)$"):
        find_kafka(settings)


@pytest.mark.parametrize("place", ["environment", "airflow.cfg"])
def test_a_control_connection_in_a_secrets_backend_is_found(
    tmp_path: Path, airflow: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    kept = tmp_path / "connections.json"
    kept.write_text(json.dumps({"kafka_control": {"conn_type": "kafka", "extra": {"bootstrap.servers": "c:1"}}}))
    backend = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
    arguments = json.dumps({"connections_file_path": str(kept)})
    if place == "environment":
        monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", backend)
        monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", arguments)
    else:
        (airflow / "airflow.cfg").write_text(f"[secrets]\nbackend = {backend}\nbackend_kwargs = {arguments}\n")
    embedded = settings_of(tmp_path, None)
    assert find_control_kafka(embedded) == {"bootstrap.servers": "c:1"}
    assert find_kafka(embedded) == {"bootstrap.servers": "127.0.0.1:1234"}
