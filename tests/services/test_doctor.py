"""What the doctor says about real brokers: a real login, the topics that are read now, the control topic."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from switchyard.kafka.client_settings import write_properties
from switchyard.kafka.topics import TopicReader, ensure_topics
from switchyard.layout import Layout
from switchyard.local.doctor import Finding, examine
from switchyard.settings import Settings
from switchyard.swap import flip, transitions
from switchyard.swap.commands import CommandHandler
from switchyard.swap.control_message import Message
from switchyard.swap.history import Event
from tests.topics import Topics
from tests.waiting import eventually


@pytest.fixture
def settings(topics: Topics, tmp_path: Path) -> Settings:
    """The settings name topics that do not exist."""
    return Settings(
        root=str(tmp_path / "root"),
        kafka_bootstrap=topics.bootstrap,
        users_topic="nowhere-users",
        accounts_topic="nowhere-accounts",
        control_topic=f"control-{topics.users}",
    )


def findings(settings: Settings) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(settings)}


def activate(settings: Settings, topics: Topics) -> None:
    """What a driver writes until its flip."""
    with TopicReader(topics.kafka) as reader:
        handler = CommandHandler(settings, reader)
        handler.take(Message(topics.users, topics.accounts), "first", "test")
    request = handler.history.ledger().find("first")
    assert request is not None
    for event in (Event.STARTING, Event.READY):
        transitions.note(handler.history, request.entry(event))
    assert flip.try_flip(handler.history, "first", datetime.now(UTC), settings.rules)


def test_the_active_topics_are_looked_at_and_not_those_of_the_settings(settings: Settings, topics: Topics) -> None:
    found = findings(settings)
    assert found["kafka login"].ok
    assert f"{topics.bootstrap} answers, PLAINTEXT" in found["kafka login"].finding
    assert found["topics"].finding == "the topic nowhere-users does not exist on the broker; create it or name another"
    assert found["topics"].remedy == "create it or name another"
    activate(settings, topics)
    found = findings(settings)
    assert found["topics"].ok
    assert found["topics"].finding == f"can be read, partitions: {topics.users} 2, {topics.accounts} 2"


def test_the_control_topic_is_looked_at_where_it_is(settings: Settings, topics: Topics, tmp_path: Path) -> None:
    missing = findings(settings)["control topic"]
    assert (missing.ok, missing.remedy) == (False, "create it or name another")
    ensure_topics(topics.kafka, [settings.control_topic])
    eventually(lambda: findings(settings)["control topic"].ok, 30)
    write_properties(tmp_path / "control.properties", {"bootstrap.servers": "127.0.0.1:1"})
    elsewhere = settings.model_copy(update={"kafka_control_properties": tmp_path / "control.properties"})
    found = findings(elsewhere)
    assert found["kafka login"].ok
    assert not found["control topic"].ok
    assert found["control topic"].finding.startswith("no broker answers at 127.0.0.1:1")
    assert found["control topic"].remedy == "start it, or correct the connection kafka_control"


def test_an_object_store_is_proved_with_two_commits(settings: Settings, bucket: Layout, tmp_path: Path) -> None:
    found = findings(settings.model_copy(update={"root": bucket.root, "home": tmp_path}))
    assert found["object store"].ok, found["object store"]
    assert "refuses one of two commits of the same version" in found["object store"].finding


BROKEN = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "nonsense"}


@pytest.mark.parametrize("broken", ["DEFAULT", "CONTROL"])
def test_each_connection_is_looked_at_whatever_is_wrong_with_the_other(
    settings: Settings, topics: Topics, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    ensure_topics(topics.kafka, [settings.control_topic])
    settings.workspace.airflow.mkdir(parents=True)
    (settings.workspace.airflow / "initialised").touch()
    for name in ("DEFAULT", "CONTROL"):
        extra = BROKEN if name == broken else topics.kafka
        monkeypatch.setenv(f"AIRFLOW_CONN_KAFKA_{name}", json.dumps({"conn_type": "kafka", "extra": extra}))
    ill, well = ("kafka login", "control topic") if broken == "DEFAULT" else ("control topic", "kafka login")
    found = eventually(lambda: (seen := findings(settings))[well].ok and seen, 60)
    said = found[ill].finding
    assert said.startswith("the Kafka setting sasl.mechanisms must be one of")
    assert said.endswith(f"(connection kafka_{broken.lower()})")
