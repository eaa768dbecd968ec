"""A secret of the Kafka connection does not get into what Airflow shows: fields, command lines, pages."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from switchyard.drivers.submission import submit_arguments
from switchyard.kafka.client_settings import read_properties, write_properties
from switchyard.settings import Settings
from tests.specs import TARGET

if TYPE_CHECKING:
    from airflow.sdk import DAG

CANARY = "canary-2b7e"
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "SCRAM-SHA-512",
    "sasl.username": "me",
    "sasl.password": f"{CANARY}-password",
    "ssl.certificate.pem": "x",
    "ssl.key.pem": f"-----BEGIN PRIVATE KEY-----\n{CANARY}-key\n-----END PRIVATE KEY-----\n",
    "ssl.key.password": f"{CANARY}-key-password",
}
# Of a schema registry, which people paste with the rest. No client of ours takes it.
REGISTRY = {"basic.auth.user.info": f"key:{CANARY}", "schema.registry.basic.auth.user.info": f"key:{CANARY}"}
# As people have it for Java, or as a whole text.
PASTED = {
    "sasl.jaas.config": f'PlainLoginModule required username="me" password="{CANARY}";',
    "sasl.oauthbearer.client.secret": CANARY,
    "ssl.keystore.key": f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n",
    "properties": f"sasl.username=me\nsasl.password={CANARY}\n",
}


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"bootstrap.servers": "broker.example.org:9093", **LOGIN}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))


def test_a_driver_is_told_the_path_alone(dags: dict[str, DAG], connections: None, tmp_path: Path) -> None:
    from switchyard.airflow.connection import read_kafka

    settings = Settings(root=str(tmp_path))
    stream = dags["switchyard_generation"].get_task("stream")
    kafka = read_kafka()
    with stream._kafka_properties(settings, 7, kafka) as properties:
        arguments = submit_arguments(7, TARGET, "latest", properties)
        driver = stream.prepare_driver(settings, stream.read_submit(settings), 7, arguments)
        path = settings.workspace.kafka_properties(7, os.getpid())
        assert read_properties(path) == kafka
        shown = {field: getattr(stream, field, None) for field in stream.template_fields}
        assert str(path) in driver._command
        assert CANARY not in repr((shown, vars(driver), stream.env_vars))
    assert not path.exists()


def test_no_field_of_any_task_holds_the_connection(dags: dict[str, DAG], connections: None) -> None:
    shown = [
        (task.task_id, field, getattr(task, field, None))
        for dag in dags.values()
        for task in dag.tasks
        for field in task.template_fields
    ]
    assert shown
    assert CANARY not in repr(shown)


def test_secrets_are_masked_when_a_task_has_read_them(connections: None) -> None:
    from airflow.sdk._shared.secrets_masker import redact

    from switchyard.airflow.connection import read_kafka

    secrets = [value for value in read_kafka().values() if CANARY in value]
    assert len(secrets) == 3
    lines = [line for secret in secrets for line in (secret, *secret.splitlines())]
    assert [text for line in lines if CANARY in (text := str(redact(f"it is {line}!")))] == []


def test_the_login_of_a_schema_registry_is_masked_and_goes_no_further() -> None:
    from airflow.sdk._shared.secrets_masker import redact

    from switchyard.airflow.connection import check_kafka

    assert check_kafka({"bootstrap.servers": "b:1", **REGISTRY}) == {"bootstrap.servers": "b:1"}
    assert CANARY not in str(redact(f"it is {REGISTRY['basic.auth.user.info']}!"))


def test_the_page_of_the_connection_hides_them(tmp_path: Path) -> None:
    """In a separate process: Airflow reads this configuration when it is imported."""
    import subprocess

    from switchyard.local.airflow import airflow_environment

    program = (
        "import json, sys\n"
        "from airflow.models.connection import Connection\n"
        "from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse\n"
        "sent = Connection(conn_id='kafka_default', conn_type='kafka', extra=sys.stdin.read())\n"
        "print(ConnectionResponse.model_validate(sent, from_attributes=True).model_dump_json())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=airflow_environment(Settings(root=str(tmp_path))),
        input=json.dumps(LOGIN | REGISTRY | PASTED),
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    extra = json.loads(json.loads(answer.stdout.splitlines()[-1])["extra"])
    assert extra["sasl.username"] == "me"
    assert CANARY not in answer.stdout


def test_up_makes_the_connection_from_the_file(tmp_path: Path) -> None:
    from switchyard.airflow.initialise import kafka_connection

    write_properties(tmp_path / "login", LOGIN)
    settings = Settings(root=str(tmp_path), kafka_bootstrap="b:1", kafka_properties=tmp_path / "login")
    made = kafka_connection(settings).extra_dejson
    bookkeeping = {"group.id": "switchyard", "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
    assert made == {"bootstrap.servers": "b:1", **LOGIN, **bookkeeping}
