"""Kafka client settings: from the connection to a private file and on to both kinds of client."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.control import check_topic_name, parse_moment
from switchyard.errors import InputError
from switchyard.kafka.client import client_properties, read_properties, to_java, write_properties

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=20)


def test_extra_becomes_text_and_airflow_fields_are_left_out() -> None:
    extra = {"bootstrap.servers": "b:1", "enable.auto.commit": False, "topics": ["x"], "session.timeout.ms": 6000}
    assert client_properties(extra) == {
        "bootstrap.servers": "b:1",
        "enable.auto.commit": "false",
        "session.timeout.ms": "6000",
    }


def test_connection_without_a_broker_is_refused() -> None:
    with pytest.raises(InputError, match=r"no bootstrap\.servers"):
        client_properties({})


def test_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "kafka.properties"
    write_properties(path, {"bootstrap.servers": "b:1"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["kafka.properties"]


@given(value=TEXT)
def test_any_password_survives_the_file(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    path = tmp_path_factory.mktemp("properties") / "kafka.properties"
    write_properties(path, {"sasl.password": value, "a=b": "c"})
    assert read_properties(path) == {"sasl.password": value, "a=b": "c"}


def test_a_backslash_before_an_n_is_no_line_break(tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    write_properties(path, {"sasl.password": "pa\\nss\nword"})
    assert read_properties(path) == {"sasl.password": "pa\\nss\nword"}


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the Kafka client properties"):
        read_properties(tmp_path / "none")


def test_java_client_gets_a_login_module_and_no_bookkeeping() -> None:
    java = to_java(
        {
            "bootstrap.servers": "b:1",
            "group.id": "g",
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": "me",
            "sasl.password": 'a"b',
        }
    )
    assert java["sasl.mechanism"] == "SCRAM-SHA-256"
    assert java["sasl.jaas.config"].endswith('ScramLoginModule required username="me" password="a\\"b";')
    assert java.keys() == {"bootstrap.servers", "sasl.mechanism", "sasl.jaas.config"}


@pytest.mark.parametrize("name", ["users", "a", "A.b_c-9", "x" * 249, "a..b"])
def test_topic_names_that_kafka_takes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "__x", "a,b", "a b", "a\n", "ä", "x" * 250, "a/b"])
def test_topic_names_that_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not a topic name"):
        check_topic_name(name)


def test_a_moment_is_an_iso_timestamp() -> None:
    assert parse_moment("2026-01-31T12:00:00Z").timestamp() == 1769860800
    with pytest.raises(InputError, match="none of latest, earliest, resume"):
        parse_moment("soon")
