"""Kafka client settings: from the connection to a private file and on to both kinds of client."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchyard.errors import InputError
from switchyard.kafka.client_settings import (
    client_properties,
    for_producers,
    parse_properties,
    read_properties,
    write_properties,
)
from switchyard.kafka.input_checks import check_topic_name, parse_moment

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


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


@given(name=TEXT.filter(str.strip), value=TEXT)
@example(name="a", value="\f ")
@example(name="sasl.mechanism", value="")
def test_any_password_survives_the_file(tmp_path_factory: pytest.TempPathFactory, name: str, value: str) -> None:
    path = tmp_path_factory.mktemp("properties") / "kafka.properties"
    # A name that is a setting's may get another spelling when the file is read, so parse it alone.
    write_properties(path, {name: value, "a=b": "c"})
    assert parse_properties(path.read_bytes().decode(), "the file") == {name: value, "a=b": "c"}
    write_properties(path, {"sasl.password": value, "a=b": "c"})
    assert read_properties(path) == {"sasl.password": value, "a=b": "c"}


def test_a_backslash_before_an_n_is_no_line_break(tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    write_properties(path, {"sasl.password": "pa\\nss\nword"})
    assert read_properties(path) == {"sasl.password": "pa\\nss\nword"}


def test_a_file_that_a_person_wrote(tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    path.write_bytes(b"# login\r\n! note\n\n  security.protocol = SASL_SSL\r\nsasl.password=a\\\\b=c \\u00fc\\tx\n")
    path.chmod(0o600)
    assert read_properties(path) == {"security.protocol": "SASL_SSL", "sasl.password": "a\\b=c ü\tx"}


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"a=b", 0o640, "others can read .*chmod 600"),
        (b"a=b", 0o604, "others can read .*chmod 600"),
        (b"a=b\nhunter2", 0o600, "^setting 2 in .* is not of the form name=value; correct the line$"),
        (b"=hunter2", 0o600, "^setting 1 in .* is not of the form name=value; correct the line$"),
        (b"a=hunter2\xff", 0o600, "are not UTF-8"),
    ],
)
def test_a_file_that_is_refused(tmp_path: Path, content: bytes, mode: int, reason: str) -> None:
    path = tmp_path / "kafka.properties"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(InputError, match=reason) as refused:
        read_properties(path)
    assert "hunter2" not in str(refused.value)


def test_a_secret_that_was_mounted_for_a_group_of_ours_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text("a=b")
    path.chmod(0o440)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert read_properties(path) == {"a": "b"}
    path.chmod(0o444)
    with pytest.raises(InputError, match="others can read"):
        read_properties(path)


@pytest.mark.parametrize("value", [["hunter2"], {"a": "hunter2"}, None, "hunter2\0", "hunter2\ud800"])
def test_a_value_that_no_client_takes_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(InputError, match=r"^the Kafka setting sasl\.password ") as refused:
        client_properties({"bootstrap.servers": "b:1", "sasl.password": value})
    assert "hunter2" not in str(refused.value)


def test_callbacks_are_not_taken_from_a_connection() -> None:
    assert client_properties({"bootstrap.servers": "b:1", "error_cb": "os.system", "on_commit": "x"}) == {
        "bootstrap.servers": "b:1"
    }


def test_a_producer_gets_no_consumer_bookkeeping() -> None:
    given = {
        "bootstrap.servers": "b:1",
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
    }
    assert for_producers(given) == {"bootstrap.servers": "b:1"}


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the Kafka client properties"):
        read_properties(tmp_path / "none")


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
