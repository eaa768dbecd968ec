"""Kafka client settings: from the Airflow connection to a private file, and from there to both kinds of client.

The names are those of librdkafka, as in the connection; `to_java` gives the same settings as Spark's client wants them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from switchyard.errors import InputError
from switchyard.kafka.security import check_security, is_security, java_security, normalise

# The Kafka provider's own fields, and callbacks, which are code.
_NOT_FOR_A_CLIENT = frozenset({"topics", "poll_timeout", "poll_interval", "on_commit"})
_CONSUMER_ONLY = frozenset({"group.id", "enable.auto.commit", "auto.offset.reset"})
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "=": "\\u003d"}
_MEANING = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def client_properties(extra: Mapping[str, object]) -> dict[str, str]:
    """Client settings out of a connection's extra field, all as text, and checked."""
    given = {str(name): _text(str(name), value) for name, value in extra.items() if _is_for_a_client(str(name))}
    properties = normalise(given)
    if not properties.get("bootstrap.servers"):
        raise InputError("the connection kafka_default has no bootstrap.servers in its extra field; add it there")
    check_security(properties)
    return properties


def _is_for_a_client(name: str) -> bool:
    return name not in _NOT_FOR_A_CLIENT and not name.endswith("_cb")


def _text(name: str, value: object) -> str:
    if not isinstance(value, (str, int, float)):
        raise InputError(f"the Kafka setting {name} must be a text, a number or a boolean (connection kafka_default)")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"the Kafka setting {name} holds a character that no client takes (connection kafka_default)")
    return text


def for_producers(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in _CONSUMER_ONLY}


def to_java(properties: Mapping[str, str]) -> dict[str, str]:
    """The settings under the names of the Java client; consumer bookkeeping is Spark's own business."""
    others = {name: value for name, value in for_producers(properties).items() if not is_security(name)}
    return others | java_security(normalise(properties))


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Writes a properties file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    lines = [f"{_escape_name(name)}={_escape(value)}\n" for name, value in sorted(properties.items())]
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
        file.writelines(lines)
    draft.replace(path)


def read_properties(path: Path) -> dict[str, str]:
    """Reads `name=value` lines, with the escapes of Java's properties files; # and ! begin a comment."""
    try:
        if _is_open_to_others(path.stat()):
            raise InputError(f"others can read the Kafka client properties in {path}: run `chmod 600` on it")
        content = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read the Kafka client properties: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"the Kafka client properties in {path} are not UTF-8; save them as UTF-8") from None
    lines = [line.removesuffix("\r").lstrip(" \t") for line in content.split("\n")]
    pairs = [line.partition("=") for line in lines if line and line[0] not in "#!"]
    for number, (name, separator, _) in enumerate(pairs, 1):
        if not name.strip() or not separator:
            raise InputError(f"setting {number} in {path} is not of the form name=value; mend the line")
    return {_unescape(name.rstrip(" \t")): _unescape(value.lstrip(" \t")) for name, _, value in pairs}


def _is_open_to_others(found: os.stat_result) -> bool:
    """A file of somebody else that we read through a group of ours is a secret that was mounted for us."""
    others = 0o077 if found.st_uid == os.geteuid() else 0o007
    return bool(stat.S_IMODE(found.st_mode) & others)


def _escape(text: str) -> str:
    escaped = "".join(_ESCAPED.get(character, character) for character in text)
    return f"\\u{ord(escaped[0]):04x}{escaped[1:]}" if escaped and escaped[0] in " \t#!" else escaped


def _escape_name(name: str) -> str:
    return _escape(name).replace(" ", "\\u0020").replace("\t", "\\t")


def _unescape(text: str) -> str:
    """One pass from left to right: in an escaped backslash followed by n there is no line break."""

    def meaning(found: re.Match[str]) -> str:
        return chr(int(found[1][1:], 16)) if len(found[1]) == 5 else _MEANING.get(found[1], found[1])

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", meaning, text, flags=re.DOTALL)
