"""Rounds of the control DAG on a real control topic and real tables: every message is taken once, whatever happens.

No driver runs here: `drive` writes what one would.
"""

from __future__ import annotations

import ctypes
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable

from switchyard.errors import SwitchyardError
from switchyard.health.accounting import account_for_commands
from switchyard.kafka import clients
from switchyard.kafka import control_topic as control_topic_module
from switchyard.kafka.control_topic import ControlRecord, ControlTopic, in_order, publish
from switchyard.kafka.topics import TopicReader, ensure_topics
from switchyard.layout import Layout
from switchyard.local import swap_client
from switchyard.local.broker import Broker
from switchyard.local.swap_client import follow, send_swap
from switchyard.offsets import Offsets
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.stream.query import kafka_options
from switchyard.swap import commands, control_loop, flip, flip_rules, transitions
from switchyard.swap.commands import Answer, CommandHandler
from switchyard.swap.control_loop import ControlRound, run_round, take_messages
from switchyard.swap.control_message import parse_message
from switchyard.swap.generations import load_spec, remove_checkpoint
from switchyard.swap.history import SETTLING, Entry, Event, Request
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import describe
from switchyard.swap.planning import USUAL_START_SECONDS, Plan
from switchyard.tables import store
from switchyard.tables.installation import installation_id
from switchyard.tables.progress import Progress, report
from tests.brokers import running_broker
from tests.events import FIRST_MS
from tests.topics import Topics
from tests.waiting import eventually

KEPT = ("swap_history", "status", "control_raw", "logs")
Fields = dict[str, Any]
Content = Fields | bytes | None


class Crash(Exception):
    """The process dies here."""


@dataclass
class Yard:
    """A control topic, the topics that may be joined, and the tables that rounds change."""

    settings: Settings
    topics: Topics
    producer: Producer
    sent: dict[int, int] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return self.settings.layout

    @property
    def control(self) -> str:
        return self.settings.control_topic

    @property
    def more_users(self) -> str:
        return f"{self.topics.users}-2"

    def but(self, **changes: Any) -> Yard:
        """The same with other settings."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def target(self, join_type: str, users: str | None = None) -> Target:
        return Target(users or self.topics.users, self.topics.accounts, join_type)

    def send(self, content: Content, partition: int = 0, ts_ms: int = 0) -> str:
        """Sends a message and returns the id that it gets when it names none."""
        value = json.dumps(content).encode() if isinstance(content, dict) else content
        self.producer.produce(self.control, value, partition=partition, timestamp=ts_ms)
        assert self.producer.flush(30) == 0
        offset = self.sent.get(partition, 0)
        self.sent[partition] = offset + 1
        return f"{self.control}-{partition}-{offset}"

    def round(self) -> ControlRound:
        return run_round(self.settings, self.topics.kafka)

    def take_at_once(self) -> ControlRound:
        """What the watcher does."""
        return take_messages(self.settings, self.topics.kafka)

    def come_to_rest(self) -> ControlRound:
        """Rounds until one changes nothing."""
        while True:
            before = self.versions()
            last = self.round()
            if self.versions() == before:
                return last

    def versions(self) -> dict[str, int]:
        there = [name for name in KEPT if store.has_table(self.layout, name)]
        return {name: DeltaTable(self.layout.table(name)).version() for name in there}

    def rows(self) -> dict[str, list[store.Row]]:
        return {name: store.read_rows(self.layout, name) for name in KEPT}

    @property
    def history(self) -> HistoryStore:
        return HistoryStore(self.layout)

    def events(self, swap_id: str) -> list[Event]:
        return [entry.event for entry in self.history.ledger().entries if entry.swapId == swap_id]

    def outcome(self, swap_id: str) -> Event | None:
        """None while a request is open; fails when it was never taken."""
        ledger = self.history.ledger()
        assert ledger.is_known(swap_id), f"{swap_id} was not taken: {ledger.entries}"
        settled = [entry for entry in ledger.entries if entry.swapId == swap_id and entry.event in SETTLING]
        assert len(settled) <= 1, settled
        return settled[0].event if settled else None

    def detail(self, swap_id: str) -> str:
        return self.history.ledger().outcomes[swap_id].detail

    def raw(self) -> list[tuple[int, int, str | None]]:
        rows = store.read_rows(self.layout, "control_raw")
        return sorted((row["partition"], row["offset"], row["value"]) for row in rows)

    def starts(self, generation: int) -> Offsets:
        spec = load_spec(self.layout, generation)
        assert spec is not None, f"generation {generation} has no spec"
        return spec.startOffsets

    @contextmanager
    def handler(self) -> Iterator[CommandHandler]:
        with TopicReader(self.topics.kafka) as reader:
            yield CommandHandler(self.settings, reader)

    def take(self, swap_id: str, **fields: Any) -> Answer:
        with self.handler() as handler:
            return handler.take(parse_message(json.dumps(fields).encode()), swap_id, "test")

    def roll_back(self, swap_id: str) -> Answer:
        with self.handler() as handler:
            return handler.roll_back(f"rollback-{swap_id}", "test")

    def drive(self, swap_id: str, is_new: bool = True) -> None:
        """What a driver does until its flip; one that lingers is not started again."""
        history, now = self.history, datetime.now(UTC)
        request = history.ledger().find(swap_id)
        assert request is not None
        for event in (Event.STARTING, Event.READY) if is_new else (Event.READY,):
            transitions.note(history, request.entry(event))
        assert flip.try_flip(history, swap_id, now, self.settings.rules)
        transitions.settle_due(history, now)

    def activate(self, swap_id: str, **fields: Any) -> int:
        answer = self.take(swap_id, **fields)
        self.drive(swap_id)
        assert answer.request is not None
        return answer.request.generation

    def retire(self, generation: int) -> None:
        now = datetime.now(UTC) + timedelta(hours=1)
        assert transitions.try_retire(self.history, generation, "", now, self.settings.rules, lambda generation: now)


@pytest.fixture(scope="module")
def kafka(broker: Broker) -> dict[str, str]:
    """The broker, when it can keep committed offsets: the first to ask makes it create the topic for them."""
    properties = {"bootstrap.servers": broker.bootstrap}
    ensure_topics(properties, ["first"])

    def has_coordinator() -> bool:
        with suppress(SwitchyardError), ControlTopic(properties, "first", "test") as control:
            list(control.read_waiting(lambda text: None))
            control.commit_ends()
            return True
        return False

    eventually(has_coordinator, 30)
    return properties


def wait_for_topics(kafka: dict[str, str], *names: str) -> None:
    """A topic that was created is not at once known, nor led, everywhere."""

    def has_leaders() -> bool:
        with suppress(SwitchyardError), TopicReader(kafka) as reader:
            return all(reader.bounds(name) for name in names)
        return False

    eventually(has_leaders, 30)


@pytest.fixture(scope="module")
def producer(kafka: dict[str, str]) -> Producer:
    return Producer(kafka | {"linger.ms": "0"})


@pytest.fixture
def yard(
    kafka: dict[str, str], producer: Producer, topics: Topics, tmp_path: Path, request: pytest.FixtureRequest
) -> Yard:
    """With a control topic of one partition, or as many as the test asks for."""
    partitions = getattr(request, "param", 1)
    settings = Settings(
        root=str(tmp_path / "root"),
        kafka_bootstrap=topics.bootstrap,
        users_topic=topics.users,
        accounts_topic=topics.accounts,
        control_topic=f"control-{uuid.uuid4().hex[:8]}",
        linger_seconds=1,
        min_dwell_seconds=0,
    )
    yard = Yard(settings, topics, producer)
    ensure_topics(kafka, [yard.control, yard.more_users], partitions)
    wait_for_topics(kafka, yard.control, yard.more_users, topics.users, topics.accounts)
    return yard


on_both = pytest.mark.parametrize("yard", [1, 3], indirect=True, ids=["one partition", "three partitions"])


def partitions_of(yard: Yard) -> int:
    with TopicReader(yard.topics.kafka) as reader:
        return len(reader.partitions(yard.control))


# Installations and clusters


def test_two_installations_on_one_control_topic_both_get_every_message(yard: Yard, tmp_path: Path) -> None:
    """The second one is new on a broker that has seen messages before: it begins with the last valid one."""
    yard.activate("first", joinType="asof")
    contents: list[Content] = [{"joinType": "inner"}, {"usersTopic": yard.more_users}, b"{"]
    ids = [yard.send(content) for content in contents]
    yard.come_to_rest()
    assert [yard.outcome(swap_id) for swap_id in ids] == [Event.SUPERSEDED, None, Event.REJECTED]

    second = yard.but(root=str(tmp_path / "second"))
    done = second.round()
    assert [second.outcome(swap_id) for swap_id in ids] == [Event.SUPERSEDED, None, Event.REJECTED]
    assert done.run is not None
    assert done.run.conf["users_topic"] == yard.more_users
    assert done.run.conf["join_type"] == "inner"
    assert installation_id(second.layout) != installation_id(yard.layout)

    last = yard.send({"joinType": "natural"})
    for each in (second, yard):
        each.come_to_rest()
        assert each.outcome(last) is None, "one has taken the message of the other"
        assert len(each.raw()) == 4


def test_the_groups_have_the_prefix_that_the_cluster_allows(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHYARD_GROUP_PREFIX", "team-a.")
    yard.send({"joinType": "inner"})
    yard.round()
    admin = AdminClient(yard.topics.kafka)
    found = {group.group_id for group in admin.list_consumer_groups().result(30).valid}
    assert f"team-a.control-{installation_id(yard.layout)}" in found
    assert kafka_options({})["groupIdPrefix"] == "team-a.spark"


@pytest.fixture
def control_kafka(tmp_path: Path) -> Iterator[dict[str, str]]:
    with running_broker(tmp_path / "control-broker") as broker:
        yield {"bootstrap.servers": broker.bootstrap}


def test_the_control_topic_may_be_on_another_cluster(yard: Yard, control_kafka: dict[str, str]) -> None:
    """On the cluster of the data there is a topic of the same name, with a message that must not be taken."""
    ensure_topics(control_kafka, [yard.control])
    wait_for_topics(control_kafka, yard.control)
    yard.send({"joinType": "natural", "id": "here"})
    publish(control_kafka, yard.control, b'{"joinType": "inner", "id": "there"}', "cli:test")

    def is_taken() -> bool:
        with suppress(SwitchyardError):
            run_round(yard.settings, yard.topics.kafka, control_kafka)
            return yard.history.ledger().is_known("there")
        return False

    eventually(is_taken, 30)
    assert yard.outcome("there") is None
    assert not yard.history.ledger().is_known("here")
    assert account_for_commands(yard.settings, control_kafka).is_clean
    request = yard.history.ledger().find("there")
    assert request is not None
    assert request.target == yard.target("inner")


def test_a_control_cluster_that_does_not_answer_is_one_sentence_and_changes_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "TIMEOUT_SECONDS", 1.0)
    yard.round()
    before = yard.versions()
    with pytest.raises(
        SwitchyardError, match=rf"^cannot read the control topic {yard.control}: .* is the broker up, .* kafka_control"
    ):
        run_round(yard.settings, yard.topics.kafka, {"bootstrap.servers": "127.0.0.1:1"})
    assert yard.versions() == before


# Messages and rounds


@on_both
def test_before_the_first_boot_the_last_message_decides_and_the_fields_of_earlier_ones_count(yard: Yard) -> None:
    contents: list[Content] = [
        {"usersTopic": yard.more_users},
        {"usersTopic": "missing", "joinType": "asof"},
        b"{",
        {"joinType": "inner"},
        {"accountsTopic": yard.topics.accounts},
    ]
    count = partitions_of(yard)
    ids = [yard.send(content, number % count, FIRST_MS + number) for number, content in enumerate(contents)]
    done = yard.round()
    expected = [Event.SUPERSEDED, Event.REJECTED, Event.REJECTED, None, Event.REFRESHED]
    assert [yard.outcome(swap_id) for swap_id in ids] == expected
    wanted = yard.history.ledger().pending
    assert wanted is not None
    assert (wanted.swapId, wanted.generation, wanted.target) == (ids[3], 2, yard.target("inner", yard.more_users))
    assert done.run is not None
    assert (done.run.run_id, done.run.conf["users_topic"]) == ("generation-2", yard.more_users)
    assert set(done.settled) == set(ids)
    assert len(yard.raw()) == len(contents)
    assert load_spec(yard.layout, 1) is None
    assert "boot" not in {entry.swapId for entry in yard.history.ledger().entries}


def test_the_first_generation_reads_all_there_is_also_after_a_burst(yard: Yard) -> None:
    yard.topics.send([("user", 0, FIRST_MS, {"userId": "a"})])
    yard.send({"joinType": "inner"})
    last = yard.send({"joinType": "asof"})
    yard.round()
    assert yard.outcome(last) is None
    assert yard.starts(2)[yard.topics.users] == {0: 0, 1: 0}


def test_the_start_of_a_superseded_message_counts(yard: Yard) -> None:
    yard.activate("first", start="latest")
    yard.topics.send_raw(yard.more_users, [b"{}"])
    yard.send({"usersTopic": yard.more_users, "start": "earliest"})
    yard.send({"joinType": "inner"})
    yard.round()
    assert yard.starts(3)[yard.more_users] == {0: 0}


def test_a_start_alone_reads_the_same_topics_again(yard: Yard) -> None:
    yard.topics.send([("user", 0, FIRST_MS, {"userId": "a"})])
    yard.activate("first", start="latest")
    alone, again = yard.send({"start": "earliest"}), yard.send({"start": "earliest"})
    yard.round()
    assert (yard.outcome(alone), yard.outcome(again)) == (None, Event.REFRESHED)
    assert yard.starts(1)[yard.topics.users] == {0: 1, 1: 0}
    assert yard.starts(2)[yard.topics.users] == {0: 0, 1: 0}
    request = yard.history.ledger().find(alone)
    assert request is not None
    assert request.target == yard.target("left")


@on_both
def test_a_round_with_nothing_to_do_changes_nothing_but_asks_for_the_defaults_once(yard: Yard) -> None:
    first = yard.round()
    assert first.settled == {"boot": "REQUESTED"}
    assert first.run is not None
    assert first.run.run_id == "generation-1"
    before = yard.rows(), yard.versions()
    assert [row["event"] for row in before[0]["swap_history"]] == ["REQUESTED"]
    second = yard.round()
    assert (second.settled, second.run) == ({}, first.run)
    assert (yard.rows(), yard.versions()) == before
    yard.drive("boot")
    before = yard.rows(), yard.versions()
    assert yard.round() == ControlRound({}, None)
    assert (yard.rows(), yard.versions()) == before


@pytest.mark.parametrize("yard", [3], indirect=True)
def test_a_burst_is_taken_in_the_order_of_time_but_never_against_the_order_of_a_partition(yard: Yard) -> None:
    yard.activate("first")
    # In partition 0 the clock went backwards: its second message is not older than its first.
    places = [(0, 50, "asof"), (0, 10, "inner"), (1, 20, "natural"), (2, 30, "inner"), (2, 60, "natural")]
    ids = [yard.send({"joinType": join}, partition, FIRST_MS + ms) for partition, ms, join in places]
    yard.round()
    taken = [request.swapId for request in yard.history.ledger().requests[1:]]
    assert taken == [ids[2], ids[3], ids[0], ids[1], ids[4]]
    outcomes = [yard.outcome(swap_id) for swap_id in taken]
    assert outcomes == [Event.SUPERSEDED] * 4 + [None]
    assert yard.history.ledger().next_generation == 7
    before = yard.versions()
    assert yard.round().settled == {}
    assert yard.versions() == before


def record(partition: int, offset: int, second: int) -> ControlRecord:
    return ControlRecord("control", partition, offset, datetime.fromtimestamp(second, UTC), b"")


@pytest.mark.parametrize(
    ("records", "order"),
    [
        ([], []),
        ([(0, 0, 5), (1, 0, 3), (2, 0, 4)], [(1, 0), (2, 0), (0, 0)]),
        ([(0, 0, 5), (1, 0, 5), (0, 1, 5)], [(0, 0), (0, 1), (1, 0)]),
        ([(0, 0, 9), (0, 1, 1), (1, 0, 5)], [(1, 0), (0, 0), (0, 1)]),
        ([(0, 1, 1), (0, 0, 9)], [(0, 0), (0, 1)]),
        ([(0, 7, 9), (0, 8, 1), (0, 9, 2), (1, 3, 9), (1, 4, 10)], [(0, 7), (0, 8), (0, 9), (1, 3), (1, 4)]),
        ([(0, 0, 0), (1, 0, 0), (0, 1, 8), (1, 1, 2)], [(0, 0), (1, 0), (1, 1), (0, 1)]),
    ],
)
def test_the_order_of_messages(records: list[tuple[int, int, int]], order: list[tuple[int, int]]) -> None:
    found = in_order([record(*place) for place in records])
    assert [(item.partition, item.offset) for item in found] == order


def test_many_messages_are_read_part_by_part_in_the_same_order(
    kafka: dict[str, str], producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, random = f"many-{uuid.uuid4().hex[:8]}", Random(7)
    ensure_topics(kafka, [topic], partitions=3)
    held: list[int] = []
    for number in range(120):
        # The first partition has most messages, and times go back now and then.
        stamp = FIRST_MS + number * 1000 - random.choice((0, 0, 7000))
        producer.produce(topic, str(number), partition=random.choice((0, 0, 0, 1, 2)), timestamp=stamp)
    producer.flush()
    with ControlTopic(kafka, topic, "whole") as control:
        whole = list(control.read_waiting(lambda text: None))
    assert sorted(int(record.value or b"") for record in whole) == list(range(120))
    assert whole == in_order(whole)

    def sort_part(records: list[ControlRecord], until: datetime) -> list[ControlRecord]:
        held.append(len(records))
        return in_order(records, until)

    monkeypatch.setattr(control_topic_module, "MOST_BYTES", 5 * 500)
    monkeypatch.setattr(control_topic_module, "in_order", sort_part)
    with ControlTopic(kafka, topic, "parts") as control:
        found = []
        for record in control.read_waiting(lambda text: None):
            found.append(record)
            control.commit(record)
        control.commit_ends()
        assert list(control.read_waiting(lambda text: None)) == []
    assert found == whole
    assert max(held) <= 3 * 5


def test_what_is_no_message_is_kept_and_refused_and_the_next_one_is_taken(yard: Yard) -> None:
    yard.activate("first")
    status = store.read_rows(yard.layout, "status")
    large = b'{"usersTopic": "' + b"x" * 64 * 1024 + b'"}'
    cases: list[tuple[bytes | None, str | None, str]] = [
        (b"swap please", "swap please", "not JSON"),
        (b"\xff\x00\xfe", "\\xff\x00\\xfe", "not JSON"),
        (None, None, "no value"),
        (b"", "", "not JSON"),
        (large, large.decode(), "at most 65536"),
        (b'{"joinType": "\\ud800"}', '{"joinType": "\\ud800"}', "half a character"),
        (b'["inner"]', '["inner"]', "not a list"),
        (b'{"joinType": 5}', '{"joinType": 5}', "not a number"),
        (b'{"id": "run:mine", "joinType": "inner"}', '{"id": "run:mine", "joinType": "inner"}', "may not begin"),
    ]
    ids = [yard.send(value) for value, _, _ in cases]
    yard.send({"joinType": 5, "id": "mine"})
    good = yard.send({"joinType": "inner", "\ud800": 1})
    yard.round()
    assert yard.outcome("mine") is Event.REJECTED
    assert [yard.outcome(swap_id) for swap_id in ids] == [Event.REJECTED] * len(cases)
    for swap_id, (_, _, reason) in zip(ids, cases, strict=True):
        assert reason in yard.detail(swap_id)
    assert [value for _, _, value in yard.raw()[:-2]] == [kept for _, kept, _ in cases]
    assert yard.events(good) == [Event.REQUESTED]
    assert store.read_rows(yard.layout, "status") == status


def test_the_same_again_is_refreshed_and_the_same_id_is_the_same_command(yard: Yard) -> None:
    yard.activate("first")
    first, again = yard.send({"joinType": "inner"}), yard.send({"joinType": "inner"})
    yard.send({"joinType": "asof", "id": "mine"})
    yard.send({"joinType": "natural", "id": "mine"})
    yard.send({"usersTopic": "missing", "id": "bad"})
    done = yard.round()
    yard.send({"usersTopic": yard.more_users, "id": "bad"})
    yard.send({"joinType": "left", "id": "mine"})
    later = yard.round()
    assert (yard.outcome(first), yard.outcome(again)) == (Event.SUPERSEDED, Event.REFRESHED)
    assert yard.events("mine") == [Event.REQUESTED]
    assert yard.events("bad") == [Event.REJECTED]
    assert done.settled == {first: "REQUESTED", again: "REFRESHED", "mine": "REQUESTED", "bad": "REJECTED"}
    assert later.settled == {"mine": "REQUESTED", "bad": "REJECTED"}
    assert flip_rules.desired(yard.history.ledger(), yard.history.status_row()) == yard.target("asof")
    assert len(yard.raw()) == 7
    said = [row["msg"] for row in store.read_rows(yard.layout, "logs")]
    assert said.count("the id mine came again and is under way already: nothing is done") == 2
    assert said.count("the id bad came again and is REJECTED already: nothing is done") == 1


def test_between_rounds_nothing_is_lost_and_what_failed_may_be_asked_for_again(yard: Yard) -> None:
    yard.activate("first")
    first = yard.send({"joinType": "inner"})
    yard.round()
    transitions.give_up(yard.history, first, "it broke", datetime.now(UTC))
    second = yard.send({"joinType": "inner"})
    back = yard.send({"joinType": "left"})
    third = yard.send({"joinType": "inner"})
    done = yard.round()
    outcomes = [yard.outcome(swap_id) for swap_id in (first, second, back, third)]
    assert outcomes == [Event.FAILED, Event.SUPERSEDED, Event.REFRESHED, None]
    assert done.run is not None
    assert done.run.run_id == f"generation-{yard.history.ledger().next_generation - 1}"
    assert yard.events(first)[-1] is Event.RETIRED
    assert load_spec(yard.layout, 2) is None


def test_an_id_that_names_the_place_of_another_message_does_not_swallow_it(yard: Yard) -> None:
    yard.activate("first")
    clashing = yard.send({"joinType": "inner", "id": f"{yard.control}-0-1"})
    own = yard.send({"joinType": "asof", "id": f"{yard.control}-0-1"})
    yard.round()
    assert (yard.outcome(clashing), yard.outcome(own)) == (Event.REJECTED, None)
    assert flip_rules.desired(yard.history.ledger(), yard.history.status_row()) == yard.target("asof")


# Messages that must not stop the next one


def recreate(yard: Yard, **config: str) -> None:
    admin = AdminClient(yard.topics.kafka)
    admin.delete_topics([yard.control])[yard.control].result()

    def is_created() -> bool:
        with suppress(confluent_kafka.KafkaException):
            admin.create_topics([NewTopic(yard.control, 1, config=config)])[yard.control].result()
            return True
        return False

    eventually(is_created, 20)
    wait_for_topics(yard.topics.kafka, yard.control)
    yard.sent.clear()


def test_a_control_topic_that_was_created_again_is_read_from_its_beginning(yard: Yard) -> None:
    yard.activate("first")
    old = [yard.send({"joinType": join}) for join in ("inner", "natural")]
    yard.round()
    recreate(yard)
    places = [yard.send({"joinType": join}) for join in ("asof", "inner", "asof")]
    done = yard.come_to_rest()
    assert places[:2] == old
    assert done.run is not None
    raw = yard.raw()
    assert [(partition, offset) for partition, offset, _ in raw] == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2)]
    ids = [request.swapId for request in yard.history.ledger().requests[1:]]
    assert ids[:2] == old
    assert ids[4] == places[2]
    assert [swap_id.startswith(f"{place}-") for swap_id, place in zip(ids[2:4], places, strict=False)] == [True, True]
    assert len(set(ids)) == 5
    assert [yard.outcome(swap_id) for swap_id in ids] == [Event.SUPERSEDED] * 4 + [None]


def test_a_message_of_a_new_control_topic_may_be_older_than_one_of_the_old(yard: Yard) -> None:
    yard.activate("first")
    yard.send({"joinType": "inner"}, ts_ms=FIRST_MS + 1000)
    yard.round()
    recreate(yard)
    yard.send({"joinType": "asof"}, ts_ms=FIRST_MS)
    yard.round()
    assert flip_rules.desired(yard.history.ledger(), yard.history.status_row()) == yard.target("asof")


def test_a_message_of_another_age_of_the_world_does_not_stop_the_next(yard: Yard) -> None:
    """Brokers before Kafka 4 take any timestamp, this one when the topic says so."""
    yard.activate("first")
    recreate(yard, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    year_10000_ms = 253_402_300_800_000
    yard.send({"joinType": "inner"}, ts_ms=year_10000_ms)
    yard.send({"joinType": "asof"})
    yard.round()
    assert len(yard.raw()) == 2
    assert flip_rules.desired(yard.history.ledger(), yard.history.status_row()) in (
        yard.target("asof"),
        yard.target("inner"),
    )


def send_with_header(yard: Yard, values: list[bytes], name: bytes) -> None:
    """Python's client sends names of headers as text only; the library below it, like other clients, any bytes."""
    (path,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka-*.so*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    conf, said = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", yard.topics.bootstrap.encode(), said, 512)
    producer = ctypes.c_void_p(library.rd_kafka_new(0, conf, said, 512))
    end, to_topic, with_value, with_flags, with_header, copied = 0, 1, 4, 6, 9, 2
    topic = (to_topic, ctypes.c_char_p(yard.control.encode()))
    header = (with_header, ctypes.c_char_p(name), ctypes.c_char_p(b"x"), ctypes.c_ssize_t(1))
    for value in values:
        content = (with_value, ctypes.c_char_p(value), ctypes.c_size_t(len(value)), with_flags, copied)
        assert library.rd_kafka_producev(producer, *topic, *content, *header, end) == 0
    assert library.rd_kafka_flush(producer, 10_000) == 0
    library.rd_kafka_destroy(producer)


def test_a_header_whose_name_is_no_text_does_not_stop_the_next_message(yard: Yard) -> None:
    """Several: a line of Python that asks for such headers may crash the process once it has run eight times."""
    yard.activate("first")
    send_with_header(yard, [b'{"joinType": "inner"}', *[b'{"joinType": "left"}'] * 9], b"\xff\xfe")
    yard.send({"joinType": "asof"})
    yard.round()
    assert flip_rules.desired(yard.history.ledger(), yard.history.status_row()) == yard.target("asof")


def test_who_asked_is_told_by_our_own_key_only(yard: Yard) -> None:
    yard.activate("first")
    for said in ("cli:ann@example.org", "<b>me</b>"):
        publish(yard.topics.kafka, yard.control, b'{"joinType": "left"}', said)
    yard.round()
    asked = [entry.requestedBy for entry in yard.history.ledger().entries if entry.event is Event.REFRESHED]
    assert asked == ["cli:ann@example.org", "control"]


def test_a_message_of_a_transaction_is_taken_when_it_is_committed(yard: Yard) -> None:
    yard.activate("first")
    producer = Producer(yard.topics.kafka | {"transactional.id": yard.control, "log_level": "0"})
    eventually(lambda: producer.init_transactions(20) is None, 30)
    for is_kept, join in ((False, "natural"), (True, "asof")):
        producer.begin_transaction()
        producer.produce(yard.control, json.dumps({"joinType": join}).encode())
        producer.flush(10)
        assert yard.round().settled == {}
        (producer.commit_transaction if is_kept else producer.abort_transaction)(20)
    eventually(lambda: yard.round().settled, 20)
    assert flip_rules.desired(yard.history.ledger(), yard.history.status_row()) == yard.target("asof")
    assert [offset for _, offset, _ in yard.raw()] == [2]


# Boot


def test_a_refused_boot_is_written_once_and_works_when_the_topics_appear(yard: Yard) -> None:
    missing = f"later-{yard.control}"
    late = yard.but(users_topic=missing)
    assert late.round() == ControlRound({"boot": "REJECTED"}, None)
    assert "does not exist" in late.detail("boot")
    before = late.rows(), late.versions()
    for _ in range(2):
        assert late.round() == ControlRound({"boot": "REJECTED"}, None)
    assert (late.rows(), late.versions()) == before
    ensure_topics(yard.topics.kafka, [missing])
    done = eventually(lambda: (last := late.round()).run and last, 20)
    assert done.settled == {"boot~2": "REQUESTED"}
    assert done.run is not None
    assert done.run.run_id == "generation-1"
    assert late.starts(1)[missing] == {0: 0}
    late.drive("boot~2")
    assert late.come_to_rest() == ControlRound({}, None)


def test_without_a_control_topic_the_defaults_are_asked_for_all_the_same(yard: Yard) -> None:
    without = yard.but(control_topic=f"no-{yard.control}")
    assert without.round().settled == {"boot": "REQUESTED"}


def test_a_boot_is_superseded_by_a_message_before_its_flip(yard: Yard) -> None:
    yard.round()
    sent = yard.send({"joinType": "inner"})
    yard.round()
    assert (yard.outcome("boot"), yard.outcome(sent)) == (Event.SUPERSEDED, None)
    yard.drive(sent)
    assert yard.come_to_rest() == ControlRound({}, None)


# Crashes


PLACES: dict[str, tuple[Any, str]] = {
    "keep_record": (control_loop, "keep_record"),
    "take_value": (CommandHandler, "take_value"),
    "commit_next": (HistoryStore, "commit_next"),
    "adopt_draft": (commands, "adopt_draft"),
    "settle_due": (transitions, "settle_due"),
    "commit": (ControlTopic, "commit"),
    "commit_ends": (ControlTopic, "commit_ends"),
    "reconcile": (control_loop, "reconcile"),
    "next_run": (CommandHandler, "next_run"),
}
BEFORE_THE_REQUEST = {"keep_record:after", "commit_next:before"}
CRASH_POINTS = [
    "keep_record:after",
    "commit_next:before",
    "commit_next:after",
    "adopt_draft:before",
    "adopt_draft:after",
    "settle_due:after",
    "take_value:after",
    "commit:after",
    "commit_ends:after",
    "reconcile:after",
    "next_run:after",
]
"""After one is before the next: `take_value:before` would be `keep_record:after`."""


def crash() -> None:
    raise Crash


def crash_once(patch: pytest.MonkeyPatch, point: str) -> None:
    """The first call dies, before or after it has done its work; later ones work."""
    interrupt_once(patch, point, crash)


def interrupt_once(patch: pytest.MonkeyPatch, point: str, act: Callable[[], object]) -> None:
    """Something happens before or after the first call does its work."""
    name, when = point.split(":")
    owner, attribute = PLACES[name]
    real: Callable[..., Any] = getattr(owner, attribute)
    has_begun = False

    def call(*args: Any, **options: Any) -> Any:
        nonlocal has_begun
        is_first, has_begun = not has_begun, True
        if is_first and when == "before":
            act()
        result = real(*args, **options)
        if is_first and when == "after":
            act()
        return result

    patch.setattr(owner, attribute, call)


@pytest.mark.parametrize(
    ("point", "actor"),
    [
        *((point, Yard.round) for point in CRASH_POINTS),
        *((point, Yard.take_at_once) for point in CRASH_POINTS if point != "reconcile:after"),
    ],
    ids=lambda given: "watcher" if given is Yard.take_at_once else "round" if given is Yard.round else None,
)
def test_after_a_crash_everything_is_taken_once_from_where_it_was_accepted(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, point: str, actor: Callable[[Yard], ControlRound]
) -> None:
    """A start at latest is where the topics ended when the request was written, if it was, else when it came again."""
    yard.activate("first")
    yard.topics.send_raw(yard.more_users, [b"{}"])
    swap, junk = yard.send({"usersTopic": yard.more_users}), yard.send(b"junk")
    crash_once(monkeypatch, point)
    with pytest.raises(Crash):
        actor(yard)
    is_accepted = yard.history.ledger().is_known(swap)
    assert is_accepted is (point not in BEFORE_THE_REQUEST)
    yard.topics.send_raw(yard.more_users, [b"{}"] * 5)
    done = yard.come_to_rest()
    assert yard.events(swap) == [Event.REQUESTED]
    assert yard.events(junk) == [Event.REJECTED]
    assert [(partition, offset) for partition, offset, _ in yard.raw()] == [(0, 0), (0, 1)]
    assert [request.generation for request in yard.history.ledger().requests] == [1, 2]
    assert done.run is not None
    assert done.run.run_id == "generation-2"
    assert yard.starts(2)[yard.more_users] == {0: 1 if is_accepted else 6}


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point != "reconcile:after"])
def test_a_round_takes_the_same_messages_between_two_steps_of_the_watcher(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Both go on to their end."""
    yard.activate("first")
    yard.topics.send_raw(yard.more_users, [b"{}"])
    swap, junk = yard.send({"usersTopic": yard.more_users}), yard.send(b"junk")
    rounds: list[ControlRound] = []
    interrupt_once(monkeypatch, point, lambda: rounds.append(yard.round()))
    taken = yard.take_at_once()
    (done,) = rounds
    assert done.run == taken.run == yard.come_to_rest().run
    assert done.run is not None
    assert done.run.run_id == "generation-2"
    assert {swap, junk} <= {*done.settled, *taken.settled}
    assert yard.events(swap) == [Event.REQUESTED]
    assert yard.events(junk) == [Event.REJECTED]
    assert [(partition, offset) for partition, offset, _ in yard.raw()] == [(0, 0), (0, 1)]
    assert yard.starts(2)[yard.more_users] == {0: 1}
    assert not list(Path(yard.layout.root).rglob("draft-*.json"))
    said = [row["msg"] for row in store.read_rows(yard.layout, "logs") if row["swapId"] == swap]
    assert sum(line.startswith("received from") for line in said) == 1
    assert not [line for line in said if "came again" in line]


def test_the_watcher_takes_messages_and_a_round_starts_the_run(yard: Yard) -> None:
    yard.activate("first")
    swap, junk = yard.send({"joinType": "inner"}), yard.send(b"junk")
    taken = yard.take_at_once()
    assert taken.settled == {swap: "REQUESTED", junk: "REJECTED"}
    assert taken.run is not None
    assert yard.take_at_once() == ControlRound({}, taken.run)
    assert yard.round() == ControlRound({}, taken.run)


def test_the_watcher_leaves_what_is_too_much_at_once_to_the_round(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.activate("first")
    sent = [yard.send(b"junk") for _ in range(5)]
    monkeypatch.setattr(control_loop, "MOST_AT_ONCE", 2)
    assert list(yard.take_at_once().settled) == sent[:2]
    assert list(yard.round().settled) == sent[2:]


def test_what_comes_while_the_watcher_takes_a_message_is_taken_before_a_run_is_chosen(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the last message of a burst gets the spare driver."""
    yard.activate("first")
    first, later = yard.send({"joinType": "inner"}), [{"joinType": "asof"}, {"usersTopic": yard.more_users}]
    take, sent = control_loop.take_record, list[str]()

    def send_meanwhile(handler: CommandHandler, record: ControlRecord) -> Answer:
        if later:
            sent.append(yard.send(later.pop(0)))
        return take(handler, record)

    monkeypatch.setattr(control_loop, "take_record", send_meanwhile)
    taken = yard.take_at_once()
    assert taken.settled == dict.fromkeys([first, *sent], "REQUESTED")
    assert taken.run is not None
    assert taken.run.conf["swap_id"] == sent[-1]
    assert [yard.outcome(swap_id) for swap_id in (first, *sent)] == [Event.SUPERSEDED, Event.SUPERSEDED, None]


def test_two_watchers_and_rounds_take_the_same_messages_at_once(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message has one outcome or one request, and the last one counts."""
    yard.activate("first")
    stopped, failures = threading.Event(), []
    take, takes = control_loop.take_record, list[int]()

    def note_take(handler: CommandHandler, record: ControlRecord) -> Answer:
        takes.append(record.offset)
        return take(handler, record)

    monkeypatch.setattr(control_loop, "take_record", note_take)

    def work(take: Callable[[], ControlRound]) -> None:
        while not stopped.is_set():
            try:
                take()
            except Exception as error:
                failures.append(error)

    takers = [
        threading.Thread(target=work, args=(take,)) for take in (yard.take_at_once, yard.take_at_once, yard.round)
    ]
    for taker in takers:
        taker.start()
    random, sent = Random(11), []
    for _ in range(24):
        content = random.choice(({"joinType": "inner"}, {"joinType": "asof"}, {"joinType": "natural"}, b"junk"))
        sent.append((yard.send(content, partition=0), content))
        stopped.wait(random.random() / 5)
    last = yard.send({"joinType": "natural", "usersTopic": yard.more_users})
    eventually(lambda: yard.history.ledger().is_known(last), 30)
    stopped.set()
    for taker in takers:
        taker.join(60)
    assert failures == []
    assert len(takes) > len(set(takes)), "no message was taken by two"
    yard.come_to_rest()
    assert not list(Path(yard.layout.root).rglob("draft-*.json"))
    assert len(yard.raw()) == 25
    said = [row["msg"] for row in store.read_rows(yard.layout, "logs")]
    assert (
        sum(line.startswith("received from") for line in said) == 1 + sum(content != b"junk" for _, content in sent) + 1
    )
    assert not [line for line in said if "came again" in line]
    outcomes = {swap_id: yard.outcome(swap_id) for swap_id, _ in sent}
    assert {outcomes[swap_id] for swap_id, content in sent if content == b"junk"} == {Event.REJECTED}
    assert {outcomes[swap_id] for swap_id, content in sent if content != b"junk"} <= {
        Event.SUPERSEDED,
        Event.REFRESHED,
    }
    assert yard.outcome(last) is None
    pending = yard.history.ledger().pending
    assert pending is not None
    assert (pending.swapId, pending.target) == (last, yard.target("natural", yard.more_users))


@pytest.mark.parametrize("content", [{"joinType": "left"}, {"joinType": "natural"}], ids=["take back", "supersede"])
def test_a_crash_while_another_request_is_withdrawn(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, content: Fields
) -> None:
    yard.activate("first")
    yard.take("second", joinType="inner")
    sent = yard.send(content)
    with monkeypatch.context() as patch:
        crash_once(patch, "commit_next:after")
        with pytest.raises(Crash):
            yard.round()
    yard.come_to_rest()
    assert yard.outcome("second") is Event.SUPERSEDED
    assert yard.outcome(sent) is (Event.REFRESHED if content["joinType"] == "left" else None)
    assert load_spec(yard.layout, 2) is None
    assert yard.events("second")[-1] is Event.RETIRED


def test_a_request_whose_topic_went_before_its_spec_was_written_does_not_stop_the_next(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.activate("first")
    swap = yard.send({"usersTopic": yard.more_users})
    crash_once(monkeypatch, "adopt_draft:before")
    with pytest.raises(Crash):
        yard.round()
    admin = AdminClient(yard.topics.kafka)
    admin.delete_topics([yard.more_users])[yard.more_users].result()
    after = yard.send({"usersTopic": yard.topics.users, "joinType": "inner"})
    with yard.handler() as handler:
        eventually(lambda: yard.more_users not in handler.reader.list_topics(), 20)
    yard.come_to_rest()
    assert yard.outcome(swap) in (Event.FAILED, Event.SUPERSEDED)
    assert yard.outcome(after) is None


# Rollback


def test_there_is_nothing_to_roll_back_to(yard: Yard) -> None:
    assert yard.roll_back("none").document()["outcome"] == "REJECTED"
    assert "no generation is active yet" in yard.detail("rollback-none")
    yard.activate("first")
    yard.roll_back("first")
    assert "generation 1 is the first one" in yard.detail("rollback-first")
    yard.activate("second", joinType="inner")
    yard.retire(1)
    remove_checkpoint(yard.layout, 1)
    yard.roll_back("removed")
    assert "the checkpoint of generation 1 was removed" in yard.detail("rollback-removed")
    refused = [entry.event for entry in yard.history.ledger().entries if entry.swapId.startswith("rollback-")]
    assert refused == [Event.REJECTED] * 3
    status_row = yard.history.status_row()
    assert (status_row.generation, status_row.epoch) == (2, 2)
    assert yard.come_to_rest() == ControlRound({}, None)


def test_rollback_to_what_lingers_needs_no_driver_and_to_what_retired_a_new_one(yard: Yard) -> None:
    yard.activate("first")
    yard.activate("second", joinType="inner")
    at_once = yard.roll_back("at-once")
    assert at_once.request is not None
    assert (at_once.request.generation, at_once.request.target) == (1, yard.target("left"))
    asked = yard.history.ledger().entries[-1]
    assert asked.detail == "from generation 2 back to generation 1, which still lingers"
    assert yard.come_to_rest() == ControlRound({}, None)
    yard.drive("rollback-at-once", is_new=False)
    assert yard.history.status_row().generation == 1
    yard.retire(2)
    resumed = yard.roll_back("resumed")
    assert resumed.request is not None
    assert resumed.request.generation == 2
    assert (
        yard.history.ledger().entries[-1].detail == "from generation 1 back to generation 2, by resuming its checkpoint"
    )
    starts = yard.starts(2)
    run = yard.come_to_rest().run
    assert run is not None
    assert (run.run_id, run.conf["start"]) == ("generation-2.2", "resume")
    assert yard.starts(2) == starts
    yard.drive("rollback-resumed")
    assert yard.history.status_row().generation == 2
    assert yard.come_to_rest() == ControlRound({}, None)


def test_rollback_supersedes_a_pending_swap_and_asked_for_twice_is_taken_once(yard: Yard) -> None:
    yard.activate("first")
    yard.activate("second", joinType="inner")
    yard.take("third", joinType="asof")
    yard.roll_back("back")
    assert (yard.outcome("third"), yard.outcome("rollback-back")) == (Event.SUPERSEDED, None)
    yard.roll_back("again")
    assert yard.outcome("rollback-again") is Event.REFRESHED
    assert "already being taken by rollback-back" in yard.detail("rollback-again")
    before = yard.history.ledger()
    assert yard.roll_back("back").document()["outcome"] == "REQUESTED"
    assert yard.history.ledger() == before
    yard.come_to_rest()
    yard.drive("rollback-back", is_new=False)
    assert yard.outcome("rollback-back") is Event.APPLIED
    assert yard.history.status_row().target == yard.target("left")
    assert load_spec(yard.layout, 3) is None


# Plans


def plan(yard: Yard, **fields: Any) -> Plan:
    """Makes a dry run and checks that it leaves one row and its log lines, and nothing else."""
    swap_id = f"plan-{uuid.uuid4().hex[:8]}"
    before, files = yard.rows(), sorted(Path(yard.layout.root).glob("checkpoints/*"))
    answer = yard.take(swap_id, dryRun=True, **fields)
    after = yard.rows()
    assert answer.plan is not None, answer
    new = {name: [row for row in after[name] if row not in before[name]] for name in KEPT}
    assert {name for name in KEPT if new[name]} == {"swap_history", "logs"}
    assert [(row["swapId"], row["event"], row["generation"]) for row in new["swap_history"]] == [
        (swap_id, "PLANNED", None)
    ]
    assert new["swap_history"][0]["detail"] == answer.plan.describe()
    received, planned = sorted(row["msg"] for row in new["logs"] if row["swapId"] == swap_id)[::-1]
    assert received.startswith("received from test: a dry run of")
    assert planned == f"planned, nothing is changed: {answer.plan.describe()}"
    assert sorted(Path(yard.layout.root).glob("checkpoints/*")) == files
    return answer.plan


def test_plans_count_the_records_of_each_start_and_change_nothing(yard: Yard) -> None:
    first = plan(yard)
    assert (first.would, first.generation, first.start, first.records) == ("swap", 1, "earliest", 0)
    for second in (0, 10, 20):
        yard.topics.send([("user", second // 10 % 2, FIRST_MS + second * 1000, {"userId": "a"})])
    yard.topics.send([("account", 0, FIRST_MS + 15_000, {"userId": "a"})])
    yard.activate("first", start="earliest")
    moment = datetime.fromtimestamp(FIRST_MS / 1000 + 5, UTC).isoformat()
    for start, records in ((None, 0), ("latest", 0), ("earliest", 4), (moment, 3)):
        made = plan(yard, joinType="inner", **({"start": start} if start else {}))
        assert (made.would, made.generation, made.records) == ("swap", 2, records)
        assert (made.usersPartitions, made.accountsPartitions, made.warnings) == (2, 2, [])
        assert made.start == (start or "latest")
        assert f"{records} records to read" in made.describe()
    other = plan(yard, usersTopic=yard.more_users, start="earliest")
    assert (other.usersPartitions, other.records) == (1, 1)
    again = plan(yard, joinType="left", start="earliest")
    assert (again.would, again.generation, again.records) == ("swap", 2, 4)
    same = plan(yard, joinType="left", start="latest")
    assert (same.would, same.generation, same.records, same.estimateSeconds) == ("refresh", 1, 0, 0.0)
    assert same.describe() == "nothing would change: it would be refreshed"


def test_a_plan_to_resume_counts_from_where_the_generation_ended(yard: Yard) -> None:
    yard.topics.send([("user", 0, FIRST_MS, {"userId": "a"}), ("account", 1, FIRST_MS, {"userId": "a"})])
    yard.activate("first", start="earliest")
    refused = yard.take("none", joinType="inner", start="resume", dryRun=True)
    assert refused.document()["outcome"] == "REJECTED"
    assert "no earlier generation" in refused.document()["detail"]
    yard.activate("second", joinType="inner")
    made = plan(yard, joinType="left", start="resume")
    assert (made.generation, made.records) == (1, 2)
    ends = json.dumps({yard.topics.users: {0: 1, 1: 0}, yard.topics.accounts: {0: 0, 1: 0}})
    report(yard.layout, progress(startOffsets="{}", endOffsets=ends))
    made = plan(yard, joinType="left", start="resume")
    assert (made.generation, made.records) == (1, 1)
    yard.take("third", joinType="asof")
    back = plan(yard, joinType="inner")
    assert (back.would, back.generation) == ("take back", 2)


def progress(**changes: Any) -> Progress:
    row = Progress(1, 1, 0, datetime.now(UTC), 2, 1.0, 100, 0, 0, 0, 0, 0, 0, 0, None, None)
    return replace(row, **changes)


def slow_down(yard: Yard, **changes: Any) -> None:
    """A big batch was read, at one record a second."""
    report(yard.layout, progress(inputRows=6_000, rowsPerSecond=1.0, batchMs=6_000_000, **changes))


def send_users(yard: Yard, count: int) -> None:
    yard.topics.send(("user", 0, FIRST_MS + number, {"userId": "a"}) for number in range(count))


def test_a_plan_that_takes_longer_than_the_deadline_warns(yard: Yard) -> None:
    send_users(yard, 6)
    # Nothing is active yet, so there is no deadline.
    first = plan(yard, deadlineSeconds=3)
    assert (first.warnings, first.deadlineSeconds) == ([], None)
    assert first.describe().endswith("s to the flip, no deadline")
    yard.activate("first")
    yard.activate("quick", joinType="asof", start="latest")
    slow_down(yard)
    made = plan(yard, joinType="inner", start="earliest", deadlineSeconds=3)
    assert 6 <= made.estimateSeconds < 16
    assert made.deadlineSeconds == 3
    warning = "that is longer than the deadline of 3 s: give a longer one or none, or start later"
    assert made.warnings == [warning]
    assert warning in made.describe()
    assert plan(yard, joinType="inner", start="latest", deadlineSeconds=60).warnings == []
    computed = plan(yard, joinType="inner", start="earliest")
    assert (computed.deadlineSeconds, computed.warnings) == (120 + 3 * 6, [])
    assert computed.describe().endswith("s to the flip, deadline 138 s")
    hasty = yard.but(ready_deadline_seconds=0.001)
    (advice,) = plan(hasty, joinType="inner", start="latest").warnings
    assert advice.endswith("raise SWITCHYARD_READY_DEADLINE_SECONDS")


def test_a_plan_knows_the_rows_per_event_of_its_topics_and_warns_when_they_grow(yard: Yard) -> None:
    assert plan(yard).rowsPerEvent is None
    yard.activate("first")
    report(yard.layout, progress(rowsPerEvent=1.25, recentRowsPerEvent=1.5))
    made = plan(yard, joinType="inner")
    assert (made.rowsPerEvent, made.warnings) == (1.5, [])
    assert made.describe().endswith(", about 1.5 rows per event")
    assert plan(yard, usersTopic=yard.more_users).rowsPerEvent is None, "nobody has read these topics yet"
    report(yard.layout, progress(batchId=1, rowsPerEvent=20.0, recentRowsPerEvent=40.0))
    (warning,) = plan(yard, joinType="inner").warnings
    assert warning.startswith("each new event makes 40 pairs")
    assert plan(yard, joinType="natural").describe().endswith(warning)
    assert ", about 40 pairs per event; " in plan(yard, joinType="natural").describe()


def test_the_deadline_of_few_records_that_make_many_rows_fits_their_rows(yard: Yard) -> None:
    yard.activate("first")
    send_users(yard, 10)
    assert plan(yard, joinType="inner", start="earliest").deadlineSeconds == pytest.approx(120, abs=1)
    report(yard.layout, progress(batchId=1, rowsPerEvent=500_000.0))
    made = plan(yard, joinType="inner", start="earliest")
    assert made.records >= 10
    assert made.deadlineSeconds == pytest.approx(120 + 3 * made.records * 10, abs=1)
    swap_id = yard.send({"joinType": "inner", "start": "earliest"})
    yard.round()
    request = yard.history.ledger().find(swap_id)
    assert request
    assert request.deadline
    assert (request.deadline - request.at).total_seconds() == pytest.approx(made.deadlineSeconds, abs=1)
    unknown = plan(yard, usersTopic=yard.more_users, start="earliest").deadlineSeconds
    assert unknown
    assert unknown < 200, "nobody has read these topics yet"


def test_small_batches_and_long_swaps_do_not_spoil_an_estimate(yard: Yard) -> None:
    yard.activate("first")
    report(yard.layout, progress(inputRows=3, rowsPerSecond=1_000_000.0))
    send_users(yard, 10)
    made = plan(yard, joinType="inner", start="earliest")
    # The usual start: the first generation had a history to read, so what it took says nothing about a start.
    assert made.estimateSeconds == USUAL_START_SECONDS
    assert made.deadlineSeconds == 120.0


# Deadlines


def take_timed(yard: Yard, swap_id: str, **fields: Any) -> tuple[Request, timedelta, timedelta]:
    """Takes a message; returns its request, and the least and the most time that it was given."""
    before = datetime.now(UTC)
    taken = yard.roll_back(swap_id) if fields == {"back": True} else yard.take(swap_id, **fields)
    request = taken.request
    assert request is not None
    assert request.deadline is not None
    return request, request.deadline - datetime.now(UTC), request.deadline - before


def requested(yard: Yard, swap_id: str) -> Entry:
    (entry,) = [e for e in yard.history.ledger().entries if (e.swapId, e.event) == (swap_id, Event.REQUESTED)]
    return entry


def test_a_swap_from_earliest_gets_a_longer_deadline_that_never_changes(yard: Yard) -> None:
    send_users(yard, 40)
    first = yard.take("first", deadlineSeconds=5)
    assert first.request is not None
    assert first.request.deadline is None
    assert "deadline" not in requested(yard, "first").detail
    yard.drive("first")
    slow_down(yard)
    request, least, most = take_timed(yard, "second", joinType="inner", start="earliest")
    assert least <= timedelta(seconds=120 + 3 * 40) <= most
    asked = requested(yard, "second")
    assert asked.deadline == request.deadline
    assert asked.detail == "joinType left → inner; its deadline is in 4 min: 40 records to read"
    told = [row["msg"] for row in store.read_rows(yard.layout, "logs") if row["swapId"] == "second"]
    assert describe(asked) in told
    # More records, faster batches, the same message again, rounds of the control DAG, another setting: it stays.
    send_users(yard, 40)
    report(yard.layout, progress(inputRows=9_000, rowsPerSecond=90_000.0, batchMs=100))
    yard.take("second", joinType="inner", start="earliest", deadlineSeconds=7)
    yard.take("same", joinType="inner", start="earliest", deadlineSeconds=7)
    assert yard.outcome("same") is Event.REFRESHED
    yard.but(ready_deadline_seconds=1).come_to_rest()
    assert requested(yard, "second") == asked
    yard.drive("second")
    assert yard.outcome("second") is Event.APPLIED
    assert requested(yard, "second") == asked


def test_a_deadline_is_that_of_the_records_of_its_start_or_the_one_that_is_asked_for(yard: Yard) -> None:
    send_users(yard, 40)
    yard.activate("first")
    slow_down(yard)
    for swap_id, fields, seconds in (
        ("from-latest", {"joinType": "inner"}, 120),
        ("from-a-moment", {"joinType": "asof", "start": moment_after(10)}, 120 + 3 * 30),
        ("hurried", {"joinType": "natural", "start": "earliest", "deadlineSeconds": 7}, 7),
        # The start of a superseded message counts for the next one; its deadline was for other work.
        ("next", {"joinType": "asof"}, 120 + 3 * 40),
        ("patient", {"joinType": "inner", "start": "latest", "deadlineSeconds": 900.5}, 900.5),
    ):
        _, least, most = take_timed(yard, swap_id, **fields)
        assert least <= timedelta(seconds=seconds) <= most, swap_id
    assert requested(yard, "from-latest").detail == "joinType left → inner"
    assert requested(yard, "hurried").detail.endswith("; its deadline is in 7 s: as the message asks")


def moment_after(records: int) -> str:
    return datetime.fromtimestamp((FIRST_MS + records) / 1000, UTC).isoformat()


def test_going_back_to_a_retired_generation_gets_time_for_what_it_has_missed(yard: Yard) -> None:
    send_users(yard, 10)
    yard.activate("first", start="earliest")
    ends = json.dumps({yard.topics.users: {0: 10, 1: 0}, yard.topics.accounts: {0: 0, 1: 0}})
    slow_down(yard, startOffsets="{}", endOffsets=ends)
    yard.activate("second", joinType="inner")
    send_users(yard, 30)
    _, least, most = take_timed(yard, "at-once", back=True)
    assert least <= timedelta(seconds=120) <= most
    yard.take("stay", joinType="inner")
    yard.retire(1)
    _, least, most = take_timed(yard, "back", back=True)
    assert least <= timedelta(seconds=120 + 3 * 30) <= most
    assert requested(yard, "rollback-back").detail == (
        "from generation 2 back to generation 1, by resuming its checkpoint; "
        "its deadline is in 3 min: 30 records to read"
    )
    yard.take("stay-again", joinType="inner")
    _, least, most = take_timed(yard, "resumed", joinType="left", start="resume")
    assert least <= timedelta(seconds=120 + 3 * 30) <= most


def test_a_rollback_that_cannot_count_its_records_is_asked_for_all_the_same(yard: Yard) -> None:
    yard.activate("first", usersTopic=yard.more_users)
    yard.activate("second", usersTopic=yard.topics.users)
    yard.retire(1)
    admin = AdminClient(yard.topics.kafka)
    admin.delete_topics([yard.more_users])[yard.more_users].result()
    eventually(lambda: yard.more_users not in admin.list_topics(timeout=10).topics, 30)
    _, least, most = take_timed(yard, "back", back=True)
    assert least <= timedelta(seconds=120) <= most
    told = [(row["level"], row["msg"]) for row in store.read_rows(yard.layout, "logs")]
    (warning,) = [msg for level, msg in told if level == "WARNING" and "cannot be counted" in msg]
    assert f"the topic {yard.more_users} does not exist" in warning


def test_who_follows_a_swap_is_patient_until_its_own_deadline(yard: Yard) -> None:
    """A setting that was lowered since does not end what was allowed more time."""
    yard.activate("first")
    hasty = yard.but(ready_deadline_seconds=0.001)
    told: list[str] = []
    with rounds(hasty):
        sent = send_swap(hasty.settings, {"joinType": "inner", "deadlineSeconds": 60}, "patient")
        outcome = follow(hasty.settings, sent, told.append)
    assert (outcome["outcome"], [line for line in told if "deadline is over" in line]) == ("APPLIED", [])


# Waiting for the outcome of a swap


@contextmanager
def rounds(yard: Yard, drive: bool = True) -> Iterator[None]:
    """The control DAG and, if wanted, the driver of each run that it starts."""
    stopped, failures = threading.Event(), []

    def work() -> None:
        while not stopped.wait(0.1):
            try:
                run = yard.round().run
                if run is not None and drive:
                    yard.drive(str(run.conf["swap_id"]))
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(60)
    assert failures == []


def test_a_swap_is_followed_to_its_outcome(yard: Yard) -> None:
    yard.activate("first")
    told: list[str] = []
    with rounds(yard):
        applied = follow(yard.settings, send_swap(yard.settings, {"joinType": "inner"}, " mine "), told.append)
        assert (applied["swapId"], applied["outcome"], applied["generation"]) == ("mine", "APPLIED", 2)
        assert [line.split()[2] for line in told] == ["REQUESTED", "STARTING", "READY", "APPLIED"]
        assert told[-1].endswith("flipped: generation 2 is active")
        told.clear()
        refused = follow(yard.settings, send_swap(yard.settings, {"usersTopic": "missing"}, None), told.append)
        assert refused["swapId"].startswith("cli-")
        assert (refused["outcome"], refused["generation"]) == ("REJECTED", None)
        assert refused["detail"] == "the topic missing does not exist on the broker; create it or name another"
        assert [line.split()[2] for line in told] == ["REJECTED"]
        again = follow(yard.settings, send_swap(yard.settings, {"joinType": "asof"}, "mine"), told.append)
        assert again | {"seconds": 0} == applied | {"seconds": 0}
    asked = {entry.requestedBy for entry in yard.history.ledger().entries if entry.swapId == "mine"}
    assert asked == {swap_client.requester()}


def test_who_follows_a_superseded_swap_is_told_by_which(yard: Yard) -> None:
    yard.activate("first")
    first = send_swap(yard.settings, {"joinType": "inner"}, "one")
    send_swap(yard.settings, {"joinType": "asof"}, "two")
    told: list[str] = []
    with rounds(yard, drive=False):
        outcome = follow(yard.settings, first, told.append)
    assert (outcome["outcome"], outcome["detail"]) == ("SUPERSEDED", "superseded by two before its flip")
    assert [line.split()[2] for line in told[:2]] == ["REQUESTED", "SUPERSEDED"]


def test_a_swap_that_misses_its_deadline_is_told_and_fails(yard: Yard) -> None:
    yard.activate("first")
    hasty = yard.but(ready_deadline_seconds=0.1)
    hasty.take("late", joinType="inner")
    told: list[str] = []
    # Nobody settles it until the deadline was told.
    with rounds_after(hasty, lambda: any("deadline" in line for line in told)):
        outcome = follow(hasty.settings, "late", told.append)
    assert outcome["outcome"] == "FAILED"
    assert outcome["detail"].startswith("not ready by its deadline")
    assert [line for line in told if line.startswith("its deadline is over")] == told[1:2]
    assert yard.history.status_row().generation == 1


@contextmanager
def rounds_after(yard: Yard, may_begin: Callable[[], bool]) -> Iterator[None]:
    def work() -> None:
        eventually(may_begin, 30)
        yard.come_to_rest()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(60)


def test_a_message_that_nobody_takes_is_told_after_a_while(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap_client, "PATIENCE_SECONDS", 0.5)
    sent = send_swap(yard.settings, {"joinType": "inner"}, None)
    with pytest.raises(SwitchyardError, match=f"{sent} was not taken within 0.5 s: is the DAG switchyard_control"):
        follow(yard.settings, sent, lambda line: None)


def test_every_entry_of_a_round_has_its_line_in_the_log(yard: Yard) -> None:
    yard.activate("first")
    known = len(yard.history.ledger().entries)
    yard.send(b"junk")
    yard.send({"joinType": "inner"})
    yard.send({"joinType": "left"})
    yard.come_to_rest()
    entries = yard.history.ledger().entries[known:]
    assert [entry.event for entry in entries] == [
        Event.REJECTED,
        Event.REQUESTED,
        Event.REQUESTED,
        Event.SUPERSEDED,
        Event.REFRESHED,
        Event.RETIRED,
    ]
    told = [(row["swapId"], row["msg"]) for row in store.read_rows(yard.layout, "logs")]
    assert [told.count((entry.swapId, describe(entry))) for entry in entries] == [1] * len(entries)
