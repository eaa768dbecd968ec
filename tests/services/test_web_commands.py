"""Commands of the page with a real broker: the topics that exist, a plan, a message on the control topic."""

from __future__ import annotations

import json

from fastapi import FastAPI
from starlette.testclient import TestClient

from switchyard.kafka.control_topic import ControlTopic
from switchyard.kafka.topics import ensure_topics
from switchyard.layout import Layout
from switchyard.local.broker import Broker
from switchyard.settings import Settings
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.web.access import Access, Viewer
from switchyard.web.api import create_app
from tests.topics import Topics


def viewer() -> Viewer:
    return Viewer("ada", may_command=True, sees_addresses=True)


def make_app(layout: Layout, broker: Broker, topics: Topics) -> FastAPI:
    settings = Settings(
        root=layout.root,
        kafka_bootstrap=broker.bootstrap,
        control_topic=f"control-{topics.users}",
        users_topic=topics.users,
        accounts_topic=topics.accounts,
    )
    ensure_topics(topics.kafka, [settings.control_topic])
    return create_app(settings, Access(viewer, viewer))


def test_topics_plan_swap_and_rollback(layout: Layout, broker: Broker, topics: Topics) -> None:
    client = TestClient(make_app(layout, broker, topics), headers={"Sec-Fetch-Site": "same-origin"})
    assert client.get("/api/v1/topics").json()["topics"][topics.users] == 2

    plan = client.post("/api/v1/plan", json={"joinType": "inner"}).json()
    assert (plan["outcome"], plan["plan"]["usersTopic"], plan["plan"]["joinType"]) == ("PLANNED", topics.users, "inner")
    refused = client.post("/api/v1/plan", json={"usersTopic": "not-there"}).json()
    assert (refused["outcome"], "not-there" in refused["detail"]) == ("REJECTED", True)

    sent = client.post("/api/v1/swap", json={"joinType": "asof", "id": "s1"})
    assert (sent.status_code, sent.json()) == (202, {"swapId": "s1"})
    with ControlTopic(topics.kafka, f"control-{topics.users}", "test") as control:
        records = list(control.read_waiting(lambda line: None))
    assert [(json.loads(record.value or b""), record.requested_by) for record in records] == [
        ({"joinType": "asof", "id": "s1"}, "page:ada")
    ]

    assert client.post("/api/v1/swap", json={"joinType": "inner"}).json()["swapId"].startswith("page-")

    undone = client.post("/api/v1/rollback", json={}).json()["swapId"]
    assert undone.startswith("rollback-page-")
    outcome = HistoryStore(layout).ledger().outcomes[undone]
    assert (outcome.event, outcome.requestedBy) == (Event.REJECTED, "page:ada")
    shown = client.get("/api/v1/swaps", params={"id": undone}).json()
    assert (shown["outcome"], "nothing to roll back" in shown["detail"]) == ("REJECTED", True)
