"""Clients of librdkafka write nothing to the terminal: what a person should know comes as a sentence of ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPEN_AND_LISTEN = """
import sys
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from switchyard.kafka.opening import Hearing, open_client

settings = {"bootstrap.servers": "127.0.0.1:1", "debug": "all"}
kind, own = {
    "Consumer": (Consumer, {"group.id": "g"}),
    "Producer": (Producer, {"enable.idempotence": "true"}),
    "AdminClient": (AdminClient, {}),
}[sys.argv[1]]
client = open_client(kind, settings | own, Hearing(settings))
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
