"""Kafka client settings: from the Airflow connection to a private file, and from there to both kinds of client.

The names are those of librdkafka, as in the connection; `to_java` gives the same settings as Spark's client wants them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from switchyard.errors import InputError

_NOT_FOR_A_CLIENT = frozenset({"topics", "poll_timeout", "poll_interval"})
_JAVA_NAMES = {
    "ssl.ca.location": "ssl.truststore.location",
    "sasl.mechanisms": "sasl.mechanism",
}
_CONSUMER_ONLY = frozenset({"group.id", "enable.auto.commit", "auto.offset.reset"})
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def client_properties(extra: Mapping[str, object]) -> dict[str, str]:
    """Client settings out of a connection's extra field, all as text."""
    properties = {str(name): _text(value) for name, value in extra.items() if name not in _NOT_FOR_A_CLIENT}
    if not properties.get("bootstrap.servers"):
        raise InputError("the connection kafka_default has no bootstrap.servers in its extra field; add it there")
    return properties


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Writes a properties file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    lines = [f"{_escape(name)}={_escape(value)}\n" for name, value in sorted(properties.items())]
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.writelines(lines)
    draft.replace(path)


def read_properties(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot read the Kafka client properties: {error}") from None
    pairs = [line.partition("=") for line in lines if line.strip() and not line.startswith("#")]
    return {_unescape(name): _unescape(value) for name, _, value in pairs}


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("=", "\\u003d")


def _unescape(text: str) -> str:
    """One pass from left to right: in an escaped backslash followed by n there is no line break."""
    meaning = {"u003d": "=", "n": "\n", "\\": "\\"}
    return re.sub(r"\\(u003d|n|\\)", lambda found: meaning[found[1]], text)


def to_java(properties: Mapping[str, str]) -> dict[str, str]:
    """The settings under the names of the Java client; consumer bookkeeping is Spark's own business."""
    java = {
        _JAVA_NAMES.get(name, name): value
        for name, value in properties.items()
        if name not in _CONSUMER_ONLY and name not in ("sasl.username", "sasl.password")
    }
    if "ssl.truststore.location" in java:
        java.setdefault("ssl.truststore.type", "PEM")
    mechanism = java.get("sasl.mechanism")
    if mechanism in _LOGIN_MODULES and "sasl.jaas.config" not in java:
        user, password = (_quoted(properties.get(f"sasl.{name}", "")) for name in ("username", "password"))
        java["sasl.jaas.config"] = f"{_LOGIN_MODULES[mechanism]} required username={user} password={password};"
    return java


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
