"""Kafka client settings: from the Airflow connection to a private file, and from there to both kinds of client.

The names are those of librdkafka, as in the connection; `to_java` gives the same settings as Spark's client wants them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from switchyard.errors import InputError
from switchyard.kafka.security import check_security, is_security, java_security
from switchyard.kafka.translate_settings import merge, normalise, rename_for_java
from switchyard.settings import load_settings

PASTED = "properties"
# Fields of Airflow's Kafka provider, and callbacks, which are code.
_NOT_FOR_A_CLIENT = frozenset({"topics", "poll_timeout", "poll_interval", "on_commit"})
_CONSUMER_ONLY = frozenset({"group.id", "enable.auto.commit", "auto.offset.reset"})
_SPECIAL = re.compile(r"[\\\s=:#!]")
_SETTING = re.compile(r"((?:[^\\\s=:]|\\.)+)[ \t\f]*[=:][ \t\f]*(.*)", re.DOTALL)
_MEANING = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def client_properties(extra: Mapping[str, object], connection: str = "kafka_default") -> dict[str, str]:
    """Return the client settings in a connection's extra field, checked, all as text.

    The field may also hold PASTED, the text of a whole properties file. A single setting wins over it, however each is
    spelled.
    """
    with _naming(connection):
        given = {str(name): _text(str(name), value) for name, value in extra.items() if _is_for_a_client(str(name))}
        pasted = parse_properties(given.pop(PASTED, ""), f"{PASTED} of the connection kafka_default")
        properties = merge(pasted, given)
        if not properties.get("bootstrap.servers"):
            raise InputError("the connection kafka_default has no bootstrap.servers in its extra field; add it there")
        check_security(properties)
        return properties


@contextmanager
def _naming(connection: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace("kafka_default", connection)) from None


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


def name_group(purpose: str) -> str:
    """Name a consumer group with the prefix under which some clusters allow groups only."""
    return f"{load_settings().group_prefix}{purpose}"


def to_java(properties: Mapping[str, str]) -> dict[str, str]:
    """The settings under the names of the Java client; consumer bookkeeping is Spark's own business."""
    known = normalise(properties)
    others = {name: value for name, value in for_producers(known).items() if not is_security(name)}
    return rename_for_java(others) | java_security(known)


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Writes a properties file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    lines = [f"{_escape(name)}={_escape(value)}\n" for name, value in sorted(properties.items())]
    with open(draft, "w", encoding="utf-8", newline="", opener=partial(os.open, mode=0o600)) as file:
        file.writelines(lines)
    draft.replace(path)


def read_properties(path: Path, connection: str = "kafka_default") -> dict[str, str]:
    """The settings of a properties file, in the one spelling that all of Switchyard uses."""
    try:
        if _is_open_to_others(path.stat()):
            raise InputError(f"others can read the Kafka client properties in {path}: run `chmod 600` on it")
        content = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read the Kafka client properties: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"the Kafka client properties in {path} are not UTF-8; save them as UTF-8") from None
    given = parse_properties(content, str(path))
    with _naming(connection):
        return normalise(given)


def parse_properties(content: str, place: str) -> dict[str, str]:
    """Reads `name=value` lines as Java does: with its escapes, lines that a backslash continues, comments after # or !.

    `place` is where the text is from, for people.
    """
    found = [_SETTING.fullmatch(line) for line in _logical_lines(content)]
    for number, setting in enumerate(found, 1):
        if setting is None:
            raise InputError(f"setting {number} in {place} is not of the form name=value; correct the line")
    return {_unescape(setting[1]): _unescape(setting[2]) for setting in found if setting is not None}


def _logical_lines(content: str) -> Iterator[str]:
    held = ""
    for line in content.split("\n"):
        text = line.removesuffix("\r").lstrip(" \t\f")
        if not held and (not text or text[0] in "#!"):
            continue
        is_continued = (len(text) - len(text.rstrip("\\"))) % 2 == 1
        held += text[:-1] if is_continued else text
        if not is_continued:
            yield held
            held = ""
    if held:
        yield held


def _is_open_to_others(found: os.stat_result) -> bool:
    """Allow a group to read the file if it is not ours: then it is a secret that was mounted for our group."""
    others = 0o077 if found.st_uid == os.geteuid() else 0o007
    return bool(stat.S_IMODE(found.st_mode) & others)


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _unescape(text: str) -> str:
    """In one pass, as an escaped backslash followed by n is no line break."""

    def meaning(found: re.Match[str]) -> str:
        return chr(int(found[1][1:], 16)) if len(found[1]) == 5 else _MEANING.get(found[1], found[1])

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", meaning, text, flags=re.DOTALL)
