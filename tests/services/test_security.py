"""Kafka with TLS, logins and access rules: every client but Spark's, the right and the wrong settings.

tests/stream/test_security.py has Spark and its drivers.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from switchyard.cli.main import main
from switchyard.errors import AccessError, InputError, SwitchyardError
from switchyard.health.accounting import account_for_commands, account_for_records
from switchyard.kafka import clients
from switchyard.kafka.client_settings import client_properties
from switchyard.kafka.clients import ErrorListener, open_client
from switchyard.kafka.control_topic import ControlRecord, ControlTopic, publish
from switchyard.kafka.new_records import assign_new, poll_newest
from switchyard.kafka.probe import probe_gaps
from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.local import loopback
from switchyard.local.doctor import examine
from switchyard.local.kafka_settings import find_control_kafka, find_kafka
from switchyard.offsets import Gap
from switchyard.settings import Settings, load_settings
from switchyard.swap.commands import CommandHandler
from switchyard.swap.control_loop import logging_failures, run_round
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.installation import installation_id
from switchyard.tables.stable_names import newest_rows
from switchyard.tables.status import read_status
from tests.secured import (
    ALLOWED,
    CANARY,
    CONTROL,
    DESCRIBED,
    HIDDEN,
    LOGINS,
    Secured,
    as_pasted,
    ask_for_topics,
    find_canary,
    send_demo,
    write_pasted,
)
from tests.waiting import eventually

REFUSED = {"OAUTHBEARER": clients.NO_TOKEN, "SSL": clients.CLIENT_REFUSED}
PASTED = ("PLAIN by JAAS", "SCRAM-SHA-512 by JAAS", "OAUTHBEARER")
SASL_HANDSHAKE, API_VERSIONS, UNSUPPORTED_VERSION = 17, 18, 35
"""Of Kafka's protocol"""
MISSING = {"OAUTHBEARER": "sasl.oauthbearer.client.secret"}
each_login = pytest.mark.parametrize("name", LOGINS)


def drain(kafka: dict[str, str], topic: str = CONTROL) -> list[bytes | None]:
    with ControlTopic(client_properties(kafka), topic, "test") as control:
        records = list(control.read_waiting(lambda text: None))
        control.commit_ends()
        return [record.value for record in records]


WAYS: dict[str, Callable[[dict[str, str]], object]] = {
    "preflight": ask_for_topics,
    "drain": drain,
    "publish": lambda kafka: publish(kafka, CONTROL, b"{}", "cli:test"),
    "demo": lambda kafka: send_demo(kafka, 30),
}


# librdkafka


@each_login
def test_with_the_right_settings_every_client_does_its_work(secured: Secured, name: str) -> None:
    kafka = client_properties(secured.logins[name].right)
    with TopicReader(kafka) as reader:
        assert reader.list_topics() == dict.fromkeys((*ALLOWED, CONTROL, DESCRIBED), 2)
        for topic in (*ALLOWED, CONTROL):
            reader.require_readable(topic)
            reader.bounds(topic)
    sent = f'{{"id": "{name}"}}'.encode()
    publish(kafka, CONTROL, sent, "cli:test")
    assert sent in drain(kafka)
    assert drain(kafka) == []
    assert send_demo(kafka) > 0


@each_login
@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_secret_is_one_sentence_without_it(
    secured: Secured, name: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = client_properties(secured.logins[name].wrong)
    with pytest.raises(AccessError) as refused:
        WAYS[way](kafka)
    assert str(refused.value) == REFUSED.get(name, clients.LOGIN_REFUSED)
    assert CANARY not in caplog.text


@each_login
def test_a_missing_secret_is_one_sentence_that_names_it(secured: Secured, name: str) -> None:
    given = secured.logins[name].missing
    if name == "SSL":
        with pytest.raises(AccessError) as refused:
            ask_for_topics(client_properties(given))
        assert str(refused.value) == clients.CLIENT_REFUSED
        return
    with pytest.raises(
        InputError,
        match=rf"^the Kafka setting {MISSING.get(name, 'sasl.password')} is missing: {name.partition(' ')[0]}",
    ):
        client_properties(given)


@pytest.mark.parametrize("claim", ["sub", "nobody"])
def test_a_claim_that_the_token_lacks(secured: Secured, claim: str) -> None:
    login = secured.logins["OAUTHBEARER"].right | {"sasl.oauthbearer.sub.claim.name": claim}
    with pytest.raises(AccessError) as refused:
        ask_for_topics(login)
    assert str(refused.value) == clients.NO_CLAIM


@pytest.mark.parametrize(
    ("listener", "sentence"),
    [("EXPIRED", clients.EXPIRED), ("STRANGE", clients.UNTRUSTED), ("PLAINTEXT", clients.NO_TLS)],
)
def test_a_broker_that_cannot_be_trusted(secured: Secured, listener: str, sentence: str) -> None:
    with pytest.raises(AccessError) as refused:
        ask_for_topics(secured.logins["SSL"].right | secured.at(listener))
    assert str(refused.value) == sentence


def test_a_certificate_for_another_name(secured: Secured) -> None:
    """127.1 is this machine too, but not what is written in the certificate."""
    with pytest.raises(AccessError) as refused:
        ask_for_topics(secured.logins["PLAIN"].right | {"bootstrap.servers": f"127.1:{secured.ports['SASL']}"})
    assert str(refused.value) == clients.OTHER_NAME


def test_a_login_that_the_broker_does_not_offer(secured: Secured) -> None:
    with pytest.raises(AccessError) as refused:
        ask_for_topics(secured.logins["PLAIN"].right | secured.at("OAUTH"))
    assert str(refused.value) == clients.NO_MECHANISM


def test_nobody_there_is_not_a_refusal(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "TIMEOUT_SECONDS", 1.0)
    with pytest.raises(SwitchyardError, match="is the broker up") as away:
        ask_for_topics(secured.logins["PLAIN"].right | {"bootstrap.servers": "127.0.0.1:1"})
    assert not isinstance(away.value, AccessError)


def test_settings_that_librdkafka_refuses_are_one_sentence(secured: Secured) -> None:
    with pytest.raises(
        InputError, match=r"^the Kafka settings are refused: .*ssl\.key\.location failed.*; correct the"
    ) as no:
        ask_for_topics(secured.logins["SSL"].right | {"ssl.key.password": f"{CANARY}-wrong"})
    assert CANARY not in str(no.value)


def test_an_extension_may_contain_what_separates_the_list(secured: Secured) -> None:
    """Read from the first message of a login, as a broker keeps nothing of an extension."""
    login = secured.logins["OAUTHBEARER"].right | {"sasl.oauthbearer.extensions.note": r"a,b\c=d"}
    with socket.create_server((loopback.HOST, 0)) as listening:
        address = f"{loopback.HOST}:{listening.getsockname()[1]}"
        properties = client_properties(login | {"bootstrap.servers": address})
        client = open_client(Producer, properties | {"security.protocol": "SASL_PLAINTEXT"}, ErrorListener(properties))
        listening.settimeout(20)
        with ThreadPoolExecutor() as pool, closing(listening.accept()[0]) as connection:
            # A client fetches its token while it is polled.
            pool.submit(client.poll, 2)
            connection.settimeout(20)
            _, *pairs = read_login(connection).split(b"\x01")
    assert [pair for pair in pairs if pair and not pair.startswith(b"auth=")] == [
        b"identityPoolId=pool-2",
        b"logicalCluster=lkc-1",
        rb"note=a,b\c=d",
    ]


def read_login(connection: socket.socket) -> bytes:
    """Answer as an old broker does, up to the first message of the login, which then has no header."""
    versions = struct.pack(">i6h", 2, SASL_HANDSHAKE, 0, 0, API_VERSIONS, 0, 0)
    mechanisms = struct.pack(">hih", 0, 1, len("OAUTHBEARER")) + b"OAUTHBEARER"
    while True:
        asked = read_frame(connection)
        key, version = struct.unpack(">hh", asked[:4])
        if key == API_VERSIONS:
            answer = struct.pack(">h", UNSUPPORTED_VERSION if version else 0) + versions
        elif key == SASL_HANDSHAKE:
            answer = mechanisms
        else:
            return asked
        connection.sendall(struct.pack(">i", len(answer) + 4) + asked[4:8] + answer)


def read_frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(size, socket.MSG_WAITALL)


# Access rules


@pytest.mark.parametrize("topic", [DESCRIBED, HIDDEN])
def test_a_topic_that_may_not_be_read_is_rejected_and_nothing_is_started(
    secured: Secured, layout: Layout, topic: str
) -> None:
    kafka = secured.logins["SCRAM-SHA-256"].right
    with TopicReader(kafka) as reader:
        handler = CommandHandler(Settings(root=layout.root), reader)
        answer = handler.take_value(json.dumps({"usersTopic": topic}).encode(), "one", "test")
        assert answer.outcome is not None
        assert answer.outcome.event is Event.REJECTED
        assert answer.outcome.detail == f"the Kafka user may not read the topic {topic}; grant DESCRIBE and READ on it"
        planned = handler.take_value(json.dumps({"usersTopic": topic, "dryRun": True}).encode(), "two", "test")
        assert planned.outcome is not None
        assert planned.outcome.event is Event.REJECTED
        assert handler.next_run() is None
        missing = handler.take_value(b'{"usersTopic": "nowhere"}', "three", "test")
        assert missing.outcome is not None
        # The broker does not tell one that may not know.
        assert missing.outcome.detail == "the Kafka user may not read the topic nowhere; grant DESCRIBE and READ on it"
    assert list(HistoryStore(layout).ledger().requests) == []


def test_a_control_topic_that_may_not_be_used_is_one_sentence(secured: Secured) -> None:
    kafka = secured.logins["SCRAM-SHA-256"].right
    with pytest.raises(
        AccessError, match=f"^the Kafka user may not write to the topic {DESCRIBED}; grant WRITE on it$"
    ):
        publish(kafka, DESCRIBED, b"{}", "cli:test")
    for topic in (DESCRIBED, HIDDEN):
        publish(secured.admin, topic, b"{}", "cli:test")
        with pytest.raises(AccessError, match=f"^the Kafka user may not read the topic {topic}; grant READ on it$"):
            drain(kafka, topic)


def refused_group(group: str) -> str:
    return (
        f"the Kafka user may not use the group {group}; grant READ on groups with this beginning, or set "
        "SWITCHYARD_GROUP_PREFIX to one that is allowed"
    )


def test_a_round_whose_group_is_refused_says_so_and_changes_nothing(
    secured: Secured, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, chosen = client_properties(secured.logins["SCRAM-SHA-256"].right), Settings(root=layout.root)
    sentence = refused_group(f"other.control-{installation_id(layout)}")
    publish(kafka, CONTROL, b'{"joinType": "inner"}', "cli:test")
    monkeypatch.setenv("SWITCHYARD_GROUP_PREFIX", "other.")
    for _ in range(2):
        with pytest.raises(AccessError) as refused, logging_failures(layout):
            run_round(chosen, kafka)
        assert str(refused.value) == sentence
    assert newest_rows(layout, "control_raw", 10) == []
    assert read_status(layout) is None
    assert list(HistoryStore(layout).ledger().requests) == []
    waits = ("ERROR", f"messages on the control topic wait: {sentence}")
    assert [(row["level"], row["msg"]) for row in newest_rows(layout, "orchestrator_logs", 10)] == [waits]
    monkeypatch.delenv("SWITCHYARD_GROUP_PREFIX")
    with logging_failures(layout):
        run_round(chosen, kafka)
    assert newest_rows(layout, "control_raw", 1)
    last = newest_rows(layout, "orchestrator_logs", 1)[0]
    assert (last["level"], last["msg"]) == ("INFO", "messages on the control topic are taken again")


def test_a_place_that_may_be_looked_up_but_not_committed(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = AclBinding(
        ResourceType.GROUP,
        "seen.",
        ResourcePatternType.PREFIXED,
        "User:scram",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient(secured.admin)
    admin.create_acls([rule])[rule].result(30)
    monkeypatch.setenv("SWITCHYARD_GROUP_PREFIX", "seen.")
    publish(secured.admin, CONTROL, b"{}", "cli:test")
    with ControlTopic(client_properties(secured.logins["SCRAM-SHA-256"].right), CONTROL, "test") as control:

        def read() -> list[ControlRecord]:
            # The rule takes a moment to be everywhere.
            with suppress(AccessError):
                return list(control.read_waiting(lambda text: None))
            return []

        eventually(read, 20)
        with pytest.raises(AccessError) as refused:
            control.commit_ends()
    assert str(refused.value) == refused_group("seen.control-test")


# Airflow and the command line


@pytest.mark.parametrize("is_pasted", [True, False], ids=["as one text", "as single settings"])
@pytest.mark.parametrize("name", PASTED)
def test_the_control_watcher_and_the_tasks_use_the_connection(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_pasted: bool
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    login = secured.logins[name]
    kafka = client_properties(login.right)
    pasted = as_pasted(login.right)
    given = {"properties": pasted} if is_pasted else login.right
    connection = {"conn_type": "kafka", "extra": {**given, "group.id": "switchyard"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("SWITCHYARD_ROOT", str(tmp_path / "root"))
    # The groups that the access rules allow begin with this.
    monkeypatch.setenv("SWITCHYARD_GROUP_PREFIX", "switchyard-team-b.")
    from airflow.sdk._shared.secrets_masker import redact

    from switchyard.airflow.connection import read_control_kafka, read_kafka
    from switchyard.airflow.control_trigger import open_control_watcher, take_now

    assert read_kafka() == kafka | {"group.id": "switchyard"}
    assert read_control_kafka() == read_kafka(), "without kafka_control the control topic is where the data is"
    assert CANARY not in str(redact(f"it says {login.secret} here, and {pasted if is_pasted else ''} there"))
    partition, offset = publish(kafka, CONTROL, b"{}", "cli:test")
    consumer = open_control_watcher()
    try:
        assert len(assign_new(consumer, [CONTROL], set())) == 2
        eventually(lambda: (CONTROL, partition, offset) in poll_newest(consumer, 1), 20)
        assert take_now(), "the message that has come, and those that other tests have left"
        raw = store.read_rows(Layout(str(tmp_path / "root")), "control_raw")
        assert (partition, offset) in [(row["partition"], row["offset"]) for row in raw]
        consumer.commit(offsets=[TopicPartition(CONTROL, partition, offset + 1)], asynchronous=False)
        admin = AdminClient(secured.admin)
        found = admin.list_consumer_groups().result(30).valid
        group = f"switchyard-team-b.bell-{installation_id(Layout(str(tmp_path / 'root')))}"
        assert group in {one.group_id for one in found}
    finally:
        consumer.close()


def test_another_connection_has_the_control_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    for name, address in (("DEFAULT", "data:1"), ("CONTROL", "control:1")):
        connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": address}}
        monkeypatch.setenv(f"AIRFLOW_CONN_KAFKA_{name}", json.dumps(connection))
    from switchyard.airflow.connection import read_control_kafka, read_kafka

    assert read_control_kafka() == {"bootstrap.servers": "control:1"}
    assert read_kafka() == {"bootstrap.servers": "data:1"}


@pytest.fixture
def command(
    secured: Secured, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The environment of the command line, with a file of client settings beside it: the text that was pasted."""
    properties = tmp_path / "login.properties"
    write_pasted(properties, request.param(secured))
    monkeypatch.setenv("SWITCHYARD_ROOT", layout.root)
    monkeypatch.setenv("SWITCHYARD_KAFKA_BOOTSTRAP", request.param(secured)["bootstrap.servers"])
    monkeypatch.setenv("SWITCHYARD_KAFKA_PROPERTIES", str(properties))


def right(secured: Secured) -> dict[str, str]:
    return secured.logins["OAUTHBEARER"].right


def wrong(secured: Secured) -> dict[str, str]:
    return secured.logins["SCRAM-SHA-512 by JAAS"].wrong


def plain(secured: Secured) -> dict[str, str]:
    return secured.logins["PLAIN by JAAS"].right


def scram(secured: Secured) -> dict[str, str]:
    return secured.logins["SCRAM-SHA-512 by JAAS"].right


@pytest.mark.parametrize(
    ("command", "mechanism"),
    [(plain, "PLAIN"), (scram, "SCRAM-SHA-512"), (right, "OAUTHBEARER")],
    indirect=["command"],
)
def test_the_command_line_logs_in_with_the_file(
    secured: Secured,
    command: None,
    mechanism: str,
    layout: Layout,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["swap", "--join-type", "inner", "--id", "by-hand", "--json"]) == 0
    assert any(value and b'"by-hand"' in value for value in drain(right(secured)))
    assert main(["plan", "--join-type", "inner", "--json"]) == 0
    assert main(["plan", "--users-topic", DESCRIBED]) == 2
    assert main(["demo", "--seconds", "0.1", "--json"]) == 0
    main(["health", "--json"])
    assert account_for_records(load_settings(), find_kafka(load_settings())).is_clean
    assert account_for_commands(load_settings(), find_control_kafka(load_settings())).is_clean
    main(["doctor"])
    said = capsys.readouterr()
    assert f"may not read the topic {DESCRIBED}" in said.err
    assert "users 2, accounts 2" in said.out
    assert f"answers, {mechanism}, " in said.out
    assert CANARY not in said.out + said.err
    assert find_canary(tmp_path) == [str(tmp_path / "login.properties")]


@pytest.mark.parametrize("command", [wrong], indirect=True)
@pytest.mark.parametrize("arguments", [["swap"], ["plan"], ["demo", "--seconds", "20"]])
def test_the_command_line_says_that_it_was_refused(
    command: None, tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.err == f"switchyard: {clients.LOGIN_REFUSED}\n"
    assert find_canary(tmp_path) == [str(tmp_path / "login.properties")]


def bad_jaas(secured: Secured) -> dict[str, str]:
    return secured.logins["PLAIN by JAAS"].right | {"sasl.jaas.config": f"PlainLoginModule required {CANARY}"}


def bad_extension(secured: Secured) -> dict[str, str]:
    return right(secured) | {"sasl.oauthbearer.extensions.pool-id": CANARY}


def bad_extension_value(secured: Secured) -> dict[str, str]:
    return right(secured) | {"sasl.oauthbearer.extensions.pool": f"{CANARY}\x01"}


def bad_claim(secured: Secured) -> dict[str, str]:
    return right(secured) | {"sasl.oauthbearer.sub.claim.name": "nobody"}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (bad_jaas, "the Kafka setting sasl.jaas.config cannot be read: it must be of the form"),
        (bad_extension, "the Kafka setting sasl.oauthbearer.extensions.pool-id must end with a name of letters only"),
        (bad_extension_value, "the Kafka setting sasl.oauthbearer.extensions.pool must have a value of ASCII"),
        (bad_claim, clients.NO_CLAIM),
        (wrong, clients.LOGIN_REFUSED),
    ],
    indirect=["command"],
)
def test_the_doctor_says_what_is_wrong_with_a_login(
    command: None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--json"]) == 1
    said = capsys.readouterr()
    assert CANARY not in said.out + said.err
    found = {one["check"]: one for one in json.loads(said.out)["checks"]}
    for check in ("kafka login", "control topic"):
        assert not found[check]["ok"]
        assert found[check]["finding"].startswith(sentence)
        assert found[check]["remedy"]


@pytest.mark.parametrize("command", [right], indirect=True)
def test_the_doctor_says_that_a_group_is_refused(
    secured: Secured, command: None, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHYARD_GROUP_PREFIX", "other.")
    found = {one.check: one for one in examine(load_settings())}
    assert found["kafka login"].ok
    assert found["topics"].ok
    assert found["control topic"].finding == refused_group(f"other.control-{installation_id(layout)}")
    assert "SWITCHYARD_GROUP_PREFIX" in found["control topic"].remedy
    # What reads at positions of its own needs no group.
    publish(secured.admin, CONTROL, b"{}", "cli:test")
    with TopicReader(client_properties(right(secured))) as reader:
        first, following = reader.bounds(CONTROL)
    gaps = [Gap(CONTROL, partition, first[partition], following[partition]) for partition in first]
    probed = probe_gaps(client_properties(right(secured)), gaps)
    assert len(probed.lost) == sum(gap.size for gap in gaps) > 0
