"""Clients of librdkafka write nothing to the terminal: what a person should know comes as a sentence of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka import control_topic
from switchyard.kafka.client_settings import client_properties, for_producers
from switchyard.kafka.clients import ErrorListener, open_client
from switchyard.kafka.demo import DemoProducer
from switchyard.kafka.topics import base_properties
from tests.unit.kafka.test_translate_settings import CONFLUENT, JAVA_TUNING

OPEN_AND_LISTEN = """
import sys
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from switchyard.kafka.clients import ErrorListener, open_client
from switchyard.kafka.demo import DemoProducer

settings = {"bootstrap.servers": "127.0.0.1:1", "debug": "all"}
kind, own = {
    "Consumer": (Consumer, {"group.id": "g"}),
    "Producer": (Producer, {"enable.idempotence": "true"}),
    "AdminClient": (AdminClient, {}),
}[sys.argv[1]]
client = open_client(kind, settings | own, ErrorListener(settings))
for _ in range(10):
    client.poll(0.1)
"""


@pytest.mark.parametrize("kind", ["Consumer", "Producer", "AdminClient"])
def test_a_client_is_silent_where_nobody_has_set_up_logging(kind: str) -> None:
    """In a process of its own: pytest hears every logger of this one."""
    heard = subprocess.run(
        [sys.executable, "-c", OPEN_AND_LISTEN, kind], capture_output=True, text=True, check=True, timeout=60
    )
    assert (heard.stdout, heard.stderr) == ("", "")


KINDS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "Consumer": (Consumer, {"group.id": "g"}),
    "Producer": (Producer, {"enable.idempotence": "true"}),
    "AdminClient": (AdminClient, {}),
}


def open_with(kind: str, given: dict[str, str]) -> None:
    """As the clients of Switchyard do; nothing is asked of the broker."""
    properties = client_properties({"bootstrap.servers": "127.0.0.1:1"} | given)
    opened, own = KINDS[kind]
    settings = base_properties(properties) | own
    open_client(opened, settings if kind == "Consumer" else for_producers(settings), ErrorListener(properties))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [CONFLUENT, JAVA_TUNING])
def test_clients_open_with_what_people_have_for_java(kind: str, text: str) -> None:
    open_with(kind, {"properties": text})


def test_a_message_is_sent_whatever_was_pasted_for_another_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_topic, "_TIMEOUT_SECONDS", 0.2)
    pasted = "acks=1\nretries=0\nmax.in.flight.requests.per.connection=10\nlinger.ms=20000\n"
    with pytest.raises(SwitchyardError, match=r"^the message did not reach the topic control: "):
        control_topic.publish(
            client_properties({"bootstrap.servers": "127.0.0.1:1", "properties": pasted}), "control", b"{}", "cli:test"
        )


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("sasl-password", "hunter2", "is unknown: remove it, or check how it is spelled"),
        ("plugin.library.pathes", "hunter2", "is unknown: remove it, or check how it is spelled"),
        ("isolation.level", "hunter2", "has a value that it cannot have"),
        ("enable.partition.eof", "hunter2", "has a value that it cannot have"),
        ("session.timeout.ms", "4000000", "has a value that it cannot have"),
        ("fetch.max.wait.ms", "hunter2", "has a value that it cannot have"),
    ],
)
def test_what_librdkafka_refuses_is_named_without_its_value(name: str, value: str, reason: str) -> None:
    with pytest.raises(InputError) as refused:
        open_with("Producer", {name: value})
    shown = {"fetch.max.wait.ms": "fetch.wait.max.ms"}.get(name, name)
    remedy = "correct the connection kafka_default, or kafka_control for the control topic"
    assert str(refused.value) == f"the Kafka setting {shown} {reason}; {remedy}"


def test_a_refusal_that_names_no_setting_does_not_repeat_a_value() -> None:
    with pytest.raises(InputError, match=r"^the Kafka settings are refused: .*\*\*\*") as refused:
        open_with("Consumer", {"partition.assignment.strategy": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_why_a_record_of_the_demo_did_not_get_through_is_a_sentence() -> None:
    nobody = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "100"}
    demo = DemoProducer(nobody, "users", "accounts", seed=1)
    demo.send(1)
    with pytest.raises(SwitchyardError) as told:
        demo.flush()
    assert str(told.value) == (
        "a record could not be sent: Local: Message timed out; see the topic and the broker, then start again"
    )
