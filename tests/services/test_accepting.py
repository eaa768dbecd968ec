"""A request on real topics: where it starts, when it is refused, and what it leaves behind."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.stream.attempt import End
from switchyard.stream.lifecycle import run_generation
from switchyard.swap.commands import CommandHandler
from switchyard.swap.control_message import Message
from switchyard.swap.generations import load_spec
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from tests.events import FIRST_MS
from tests.stream.driver import ask
from tests.topics import Topics


@pytest.fixture
def settings(layout: Layout) -> Settings:
    return Settings(root=layout.root, max_offsets_per_trigger=60, linger_seconds=1, min_dwell_seconds=0)


def test_a_driver_started_again_after_its_generation_was_superseded_does_nothing(
    settings: Settings, topics: Topics
) -> None:
    ask(settings, topics, "first", "left", "latest")
    spec = load_spec(settings.layout, 1)
    assert spec is not None
    ask(settings, topics, "second", "inner", "latest")
    before = HistoryStore(settings.layout).ledger()
    assert before.outcomes["first"].event is Event.SUPERSEDED
    assert "second" in before.outcomes["first"].detail
    assert run_generation(settings, spec, topics.kafka) is End.RETIRED
    assert HistoryStore(settings.layout).ledger() == before


def test_a_timestamp_starts_at_the_first_record_not_before_it(settings: Settings, topics: Topics) -> None:
    for second in (0, 10, 20):
        topics.send([("user", 0, FIRST_MS + second * 1000, {"userId": "a"})])
    moment = datetime.fromtimestamp(FIRST_MS / 1000 + 5, UTC).isoformat()
    ask(settings, topics, "timed", "left", moment)
    spec = load_spec(settings.layout, 1)
    assert spec is not None
    assert spec.startOffsets == {topics.users: {0: 1, 1: 0}, topics.accounts: {0: 0, 1: 0}}
    assert spec.readyOffsets == {topics.users: {0: 3, 1: 0}, topics.accounts: {0: 0, 1: 0}}


@pytest.mark.parametrize(
    ("users", "accounts", "start", "reason"),
    [
        ("no-such-topic", None, "latest", "the topic no-such-topic does not exist"),
        ("a,b", None, "latest", "is not a topic name"),
        ("__consumer_offsets", None, "latest", "is not a topic name"),
        ("control", None, "latest", "is the control topic"),
        (None, "same", "latest", "cannot both come from"),
        (None, None, "resume", "no earlier generation"),
    ],
)
def test_bad_request_is_refused_before_a_driver_starts_and_leaves_nothing_behind(
    settings: Settings, topics: Topics, users: str | None, accounts: str | None, start: str, reason: str
) -> None:
    message = Message(users or topics.users, topics.users if accounts == "same" else topics.accounts, "left", start)
    with TopicReader(topics.kafka) as reader:
        answer = CommandHandler(settings, reader).take(message, "bad", "test")
    assert answer.outcome is not None
    assert (answer.outcome.event, answer.request) == (Event.REJECTED, None)
    assert reason in answer.outcome.detail
    assert [entry.event for entry in HistoryStore(settings.layout).ledger().entries] == [Event.REJECTED]
    assert {path.name for path in Path(settings.root).iterdir()} == {"tables"}
    assert store.read_rows(settings.layout, "status") == []
    assert [row["level"] for row in store.read_rows(settings.layout, "logs")].count("WARNING") == 1
