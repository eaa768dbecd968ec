"""Alerts to a real HTTP server, and what is told when it does not take them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException

from switchyard.airflow.notify import IncidentNotifier, send
from switchyard.health.checks import Level
from switchyard.health.incidents import Incident, Stage

SECRET = "T000/B000/canary-of-the-webhook"
INCIDENT = Incident(datetime(2026, 5, 1, tzinfo=UTC), "disk", Stage.RAISED, Level.PERSON, "0.5 GiB are free")


@dataclass
class Receiver:
    port: int
    status: int = 200
    seen: list[tuple[str, str | None, dict[str, object]]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.seen.append((self.path, self.headers["Authorization"], body))
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(server.server_port)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def connection(receiver: Receiver, conn_type: str) -> Connection:
    host = f"http://127.0.0.1:{receiver.port}/services"
    return Connection(conn_id="switchyard_alerts", conn_type=conn_type, host=host, password=SECRET)


def test_a_webhook_gets_the_incidents_as_json(receiver: Receiver) -> None:
    send(connection(receiver, "http"), IncidentNotifier([INCIDENT]).document())
    path, authorization, body = receiver.seen[0]
    assert (path, authorization) == ("/services", f"Bearer {SECRET}")
    assert body["text"] == "Switchyard, raised: disk: 0.5 GiB are free"
    assert body["incidents"] == [
        {
            "at": "2026-05-01T00:00:00+00:00",
            "check": "disk",
            "stage": "RAISED",
            "level": "person needed",
            "detail": "0.5 GiB are free",
        }
    ]


def test_slack_gets_a_text_at_its_secret_address(receiver: Receiver) -> None:
    send(connection(receiver, "slackwebhook"), IncidentNotifier([INCIDENT]).document())
    assert receiver.seen == [
        (f"/services/{SECRET}", None, {"text": "Switchyard, raised: disk: 0.5 GiB are free"}),
    ]


@pytest.mark.parametrize("conn_type", ["http", "slackwebhook"])
def test_an_alert_that_was_not_taken_is_told_without_the_secret(receiver: Receiver, conn_type: str) -> None:
    receiver.status = 500
    with pytest.raises(AirflowException, match="it answered 500") as failed:
        send(connection(receiver, conn_type), IncidentNotifier([INCIDENT]).document())
    assert SECRET not in str(failed.value)
    unreachable = Connection(
        conn_id="switchyard_alerts", conn_type=conn_type, host="http://127.0.0.1:1", password=SECRET
    )
    with pytest.raises(AirflowException, match="URLError") as failed:
        send(unreachable, IncidentNotifier([INCIDENT]).document())
    assert SECRET not in str(failed.value)
