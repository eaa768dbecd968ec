"""Parse a control message: from its bytes to a `Message` with normalised fields, or to the reason why not. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic.dataclasses import dataclass as pydantic_dataclass

from switchyard.errors import InputError
from switchyard.kafka.input_checks import parse_moment
from switchyard.layout import JOIN_TYPES
from switchyard.swap.history import (
    BACKFILL_PREFIX,
    BOOT_ID,
    BY_HAND_PREFIX,
    HOSTED_PREFIX,
    PUBLISH_PREFIX,
    ROLLBACK_PREFIX,
    UNDO_PREFIX,
)
from switchyard.wording import shorten

MOST_BYTES = 64 * 1024
MOST_ID_CHARACTERS = 200
MOST_DEADLINE_SECONDS = 365 * 24 * 3600
NAMED_STARTS = ("latest", "earliest", "resume")
FIELDS = ("usersTopic", "accountsTopic", "joinType", "start", "dryRun", "deadlineSeconds", "id")
_JOIN_SPELLINGS = (
    (re.compile(r"left.*", re.DOTALL), "left"),
    (re.compile(r"inner.*|join", re.DOTALL), "inner"),
    (re.compile(r"natural.*", re.DOTALL), "natural"),
    (re.compile(r"as[\W_]*of.*|aj", re.DOTALL), "asof"),
)
_PREFIXES = (HOSTED_PREFIX, ROLLBACK_PREFIX, UNDO_PREFIX, BY_HAND_PREFIX, BACKFILL_PREFIX, PUBLISH_PREFIX)
RESERVED_IDS = (*_PREFIXES, f"{BOOT_ID}~")


def _trim(given: object, info: ValidationInfo) -> object:
    if not isinstance(given, str):
        return given
    try:
        given.encode()
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair; no table can hold it.
        raise InputError(f"{info.field_name} holds half a character (a lone surrogate); send whole ones") from None
    # Blank means missing.
    return given.strip() or None


def check_id(given: str | None) -> str | None:
    if given is not None and (given == BOOT_ID or given.startswith(RESERVED_IDS)):
        raise InputError(f"an id may not begin with {', '.join(RESERVED_IDS)}: these name other commands")
    return given


def normalise_join(given: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the join type, of which only the beginning counts, and a warning if it is unknown: that means left."""
    if given is None:
        return None, ()
    for spelling, name in _JOIN_SPELLINGS:
        if spelling.fullmatch(given.lower()):
            return name, ()
    return "left", (f"{shorten(given)!r} is not a join type, so left is taken; known are {', '.join(JOIN_TYPES)}",)


def normalise_start(given: str | None) -> str | None:
    if given is None or given.lower() in NAMED_STARTS:
        return given and given.lower()
    parse_moment(given)
    return given


Text = Annotated[str | None, BeforeValidator(_trim)]
Seconds = Annotated[float, Field(gt=0, le=MOST_DEADLINE_SECONDS, allow_inf_nan=False)]


@pydantic_dataclass(frozen=True, config=ConfigDict(strict=True))
class Message:
    """A control message, normalised; None keeps the current value."""

    usersTopic: Text = None
    accountsTopic: Text = None
    joinType: Annotated[Text, AfterValidator(lambda given: normalise_join(given)[0])] = None
    start: Annotated[Text, AfterValidator(normalise_start)] = None
    dryRun: bool = False
    deadlineSeconds: Seconds | None = None
    id: Annotated[
        str | None, Field(max_length=MOST_ID_CHARACTERS), BeforeValidator(_trim), AfterValidator(check_id)
    ] = None
    warnings: tuple[str, ...] = ()


def parse_message(value: bytes | None) -> Message:
    """Read and normalise a message; raise InputError if it is not valid."""
    if value is None:
        raise InputError('the message has no value; send a JSON object such as {"joinType": "inner"}')
    if len(value) > MOST_BYTES:
        raise InputError(f"the message has {len(value)} bytes; at most {MOST_BYTES} are allowed")
    fields = _parse_object(value)
    known = {name: fields[name] for name in FIELDS if fields.get(name) is not None}
    try:
        message = Message(**known)
    except ValidationError as error:
        raise InputError(_explain(error)) from None
    return replace(message, warnings=_warn(fields))


def _explain(error: ValidationError) -> str:
    """Put Pydantic's first complaint into one sentence."""
    first = error.errors(include_url=False)[0]
    name, given = first["loc"][0], first["input"]
    if name == "deadlineSeconds":
        shown = shorten(str(given)) if type(given) in (int, float) else _kind(given)
        return f"{name} must be a number above 0 and up to {MOST_DEADLINE_SECONDS} (a year), not {shown}"
    if first["type"] == "string_too_long":
        return f"{name} has {len(given)} characters; at most {MOST_ID_CHARACTERS} are allowed"
    return f"{name} must be {'true or false' if name == 'dryRun' else 'a text'}, not {_kind(given)}"


def _warn(fields: Mapping[str, Any]) -> tuple[str, ...]:
    _, warnings = normalise_join((fields.get("joinType") or "").strip() or None)
    ignored = sorted(set(fields) - set(FIELDS))
    if ignored:
        names = ", ".join(ignored).encode("utf-8", "backslashreplace").decode()
        warnings += (f"ignored: {shorten(names)}",)
    return warnings


def read_id(value: bytes | None) -> str | None:
    """Return the id of a message, also if the message is refused for another reason; None without a valid id."""
    try:
        return Message(id=_parse_object(value or b"").get("id")).id if len(value or b"") <= MOST_BYTES else None
    except (InputError, ValidationError):
        return None


def _parse_object(value: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(value.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the message is not JSON: {shorten(str(error))}") from None
    if not isinstance(parsed, dict):
        raise InputError(f"the message must be a JSON object, not {_kind(parsed)}")
    return parsed


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _kind(value: object) -> str:
    names = {
        bool: "true or false",
        str: "a text",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")
