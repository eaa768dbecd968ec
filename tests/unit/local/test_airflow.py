"""Airflow on one machine: its environment and its keys."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from switchyard.errors import SwitchyardError
from switchyard.layout import Workspace
from switchyard.local import airflow
from switchyard.local.airflow import airflow_environment, airflow_url, ensure_keys, ensure_password, read_password
from switchyard.local.database import Database
from switchyard.settings import Settings


def settings_of(root: Path, port: int = 8080) -> Settings:
    return Settings(root=str(root), airflow_port=port)


def test_everything_is_below_the_workspace_and_on_loopback(tmp_path: Path) -> None:
    env = airflow_environment(settings_of(tmp_path, 9000), Path("/project"), {"PATH": "/usr/bin"})
    assert env["AIRFLOW_HOME"] == str(tmp_path / "airflow")
    assert env["AIRFLOW__CORE__DAGS_FOLDER"] == "/project/dags"
    assert env["AIRFLOW__CORE__PLUGINS_FOLDER"] == "/project/plugins"
    assert env["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert env["AIRFLOW__API__PORT"] == "9000"
    assert env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:9000/execution/"
    assert env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == Database(tmp_path / "database").address
    assert env["SWITCHYARD_ROOT"] == str(tmp_path)
    assert env["PATH"].endswith(":/usr/bin")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD", "cat /run/secrets/airflow_database"),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_SECRET", "airflow-database"),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql+psycopg2://airflow@postgres/airflow"),
    ],
)
def test_a_database_that_the_environment_names_is_taken_as_it_is(tmp_path: Path, name: str, value: str) -> None:
    environment = airflow_environment(settings_of(tmp_path), base={name: value})
    named = {key: value for key, value in environment.items() if key.startswith("AIRFLOW__DATABASE__")}
    assert named == {name: value}


def test_the_supervisor_finds_the_embedded_database_again_in_the_environment_that_it_got(tmp_path: Path) -> None:
    once = airflow_environment(settings_of(tmp_path), Path("/project"), {"PATH": "/usr/bin"})
    again = airflow_environment(settings_of(tmp_path), Path("/project"), once)
    assert again["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == once["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    assert not airflow.names_database(once)


def test_what_was_prepared_in_another_database_does_not_count_for_the_embedded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(airflow.DATABASE, raising=False)
    here = airflow.describe_database(settings_of(tmp_path))
    monkeypatch.setenv(f"{airflow.DATABASE}_CMD", "cat address")
    assert airflow.describe_database(settings_of(tmp_path)) != here


def test_no_secret_is_in_the_environment(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    ensure_password(settings.workspace)
    keys = ensure_keys(settings.workspace).read_text()
    secrets = [line.split(" = ")[1] for line in keys.splitlines() if " = " in line]
    secrets.append(read_password(settings.workspace))
    assert len(secrets) == 4
    values = airflow_environment(settings, base={}).values()
    assert [value for value in values if any(secret in value for secret in secrets)] == []


def test_proxies_are_left_out_for_loopback(tmp_path: Path) -> None:
    env = airflow_environment(settings_of(tmp_path), base={"NO_PROXY": "example.org"})
    assert env["NO_PROXY"] == env["no_proxy"] == "example.org,127.0.0.1,localhost"


@pytest.mark.parametrize("ensure", [ensure_password, ensure_keys])
def test_secrets_are_private_and_made_once(tmp_path: Path, ensure: object) -> None:
    workspace = Workspace(tmp_path)
    path = ensure(workspace)  # type: ignore[operator]
    before = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure(workspace).read_text() == before  # type: ignore[operator]


def test_airflow_has_room_for_the_kept_ones_and_for_all_other_tasks(tmp_path: Path) -> None:
    for keeps, room in ((False, 16), (True, 72)):
        settings = Settings(root=str(tmp_path), keep_generations=keeps)
        assert airflow_environment(settings, base={})["AIRFLOW__CORE__PARALLELISM"] == str(room)
        assert settings.most_generations < room


def test_airflow_is_on_this_machine_unless_the_settings_name_another_place(tmp_path: Path) -> None:
    assert airflow_url(settings_of(tmp_path, 9000)) == "http://127.0.0.1:9000"
    assert airflow_url(Settings(root=str(tmp_path), airflow_url="https://airflow/")) == "https://airflow"


def test_a_password_that_is_not_there_says_where_it_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SwitchyardError, match=f"no password of Airflow at {tmp_path}/.*SWITCHYARD_HOME"):
        read_password(Workspace(tmp_path))
