"""The task that takes commands: people hear why it cannot, also where nobody reads its log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from switchyard.cli.main import main
from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka import clients
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.swap.history import StatusRow
from switchyard.swap.history_store import HistoryStore
from switchyard.tables.stable_names import newest_rows
from switchyard.web.access import Access, Viewer
from switchyard.web.api import create_app
from tests.histories import set_row
from tests.specs import TARGET

CANARY = "canary-7f3a9c"
AWAY = {"bootstrap.servers": "127.0.0.1:1"}
BAD_JAAS = AWAY | {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f"PlainLoginModule required password={CANARY}",
}
BAD_EXTENSION = AWAY | {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": f"{CANARY}-secret",
    "sasl.oauthbearer.extensions.pool": f"{CANARY}\x01",
}
JAAS_SENTENCE = "the Kafka setting sasl.jaas.config cannot be read: it must be of the form"
EXTENSION_SENTENCE = "the Kafka setting sasl.oauthbearer.extensions.pool must have a value of ASCII characters"


def read_as_the_page(settings: Settings) -> list[dict[str, Any]]:
    """The rows of `orchestrator_logs`, newest first, from the API that the page asks."""

    def viewer() -> Viewer:
        return Viewer("viewer")

    static = Path(settings.root) / "static"
    static.mkdir()
    answer = TestClient(create_app(settings, Access(viewer, viewer), static)).get("/api/v1/tables/orchestrator_logs")
    assert answer.status_code == 200
    assert CANARY not in answer.text
    rows: list[dict[str, Any]] = answer.json()["rows"]
    return rows


@pytest.mark.parametrize(
    ("name", "broken", "beginning", "end"),
    [
        ("DEFAULT", BAD_JAAS, JAAS_SENTENCE, "(connection kafka_default)"),
        ("CONTROL", BAD_JAAS, JAAS_SENTENCE, "(connection kafka_control)"),
        ("DEFAULT", BAD_EXTENSION, EXTENSION_SENTENCE, "(connection kafka_default)"),
        ("CONTROL", BAD_EXTENSION, EXTENSION_SENTENCE, "(connection kafka_control)"),
        ("CONTROL", AWAY, "cannot read the control topic control: ", "kafka_control for the control topic, right?"),
    ],
)
def test_a_round_that_cannot_begin_is_told_once_and_leaves_the_active_generation_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    broken: dict[str, str],
    beginning: str,
    end: str,
) -> None:
    from switchyard.airflow.control_operators import ControlOperator
    from switchyard.airflow.control_trigger import take_now

    monkeypatch.setattr(clients, "TIMEOUT_SECONDS", 1.0)
    monkeypatch.setenv("SWITCHYARD_ROOT", str(tmp_path))
    for each in ("DEFAULT", "CONTROL"):
        extra = broken if each == name else AWAY
        monkeypatch.setenv(f"AIRFLOW_CONN_KAFKA_{each}", json.dumps({"conn_type": "kafka", "extra": extra}))
    history = HistoryStore(Layout(str(tmp_path)))
    active = set_row(history, StatusRow(generation=3, target=TARGET, lastApplied=datetime(2026, 1, 31, tzinfo=UTC)))
    assert take_now() == {}, "the watcher goes on, and leaves it to the round to tell why"
    for _ in range(2):
        with pytest.raises(SwitchyardError) as refused:
            ControlOperator(task_id="take_commands").execute({})
    assert isinstance(refused.value, InputError) == (broken is not AWAY)
    sentence = str(refused.value)
    assert sentence.startswith(beginning)
    assert sentence.endswith(end)
    assert history.status_row() == active
    assert list(history.ledger().entries) == []
    expected = [("ERROR", f"messages on the control topic wait: {sentence}")]
    told = newest_rows(Layout(str(tmp_path)), "orchestrator_logs", 10)
    assert [(row["level"], row["msg"]) for row in told] == expected
    assert main(["logs"]) == 0
    shown = capsys.readouterr().out
    assert sentence in shown
    assert CANARY not in shown
    assert [(row["level"], row["msg"]) for row in read_as_the_page(Settings(root=str(tmp_path)))] == expected


def test_a_round_shows_what_the_watcher_took_before_it() -> None:
    from switchyard.airflow.control_operators import find_taken

    payloads = [{"topic": "control", "settled": {"a": "REQUESTED"}}, {"settled": {"b": "REJECTED"}}, {"offset": 3}]
    events = [SimpleNamespace(extra={"from_trigger": True, "payload": payload}) for payload in payloads]
    by_hand = SimpleNamespace(extra=None)
    assert find_taken({"triggering_asset_events": {"asset": [*events, by_hand]}}) == {"a": "REQUESTED", "b": "REJECTED"}
    assert find_taken({}) == {}
