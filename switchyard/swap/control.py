"""From the bytes of a control message to a decision. Pure: the broker's topics and the present state are handed in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic.dataclasses import dataclass as pydantic_dataclass

from switchyard.errors import InputError
from switchyard.kafka.input_checks import check_topic_name, parse_moment
from switchyard.layout import JOIN_TYPES
from switchyard.policies import Policy, Target
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
RESERVED_IDS = (
    HOSTED_PREFIX,
    ROLLBACK_PREFIX,
    UNDO_PREFIX,
    BY_HAND_PREFIX,
    BACKFILL_PREFIX,
    PUBLISH_PREFIX,
    f"{BOOT_ID}~",
)


class UnknownTopicError(InputError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"the topic {topic} does not exist on the broker; create it or name another")
        self.topic = topic


def _trim(given: object, info: ValidationInfo) -> object:
    """Blank is missing."""
    if not isinstance(given, str):
        return given
    try:
        given.encode()
    except UnicodeEncodeError:
        # JSON can spell half a character; no table can hold it.
        raise InputError(f"{info.field_name} holds half a character (a lone surrogate); send whole ones") from None
    return given.strip() or None


def check_id(given: str | None) -> str | None:
    if given is not None and (given == BOOT_ID or given.startswith(RESERVED_IDS)):
        raise InputError(f"an id may not begin with {', '.join(RESERVED_IDS)}: these name other commands")
    return given


def normalise_join(given: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The join type, of which only the beginning counts, and a warning: an unknown one means left."""
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
    """A control message, normalised: None keeps the current value. An InputError of a check is raised as it is."""

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


class DecisionKind(StrEnum):
    REFRESH = "refresh"
    SWAP = "swap"
    TAKE_BACK = "take back"
    """What is active is wanted again, before another one has replaced it."""


@dataclass(frozen=True)
class Decision:
    """What a message asks for, given what was asked before."""

    kind: DecisionKind
    target: Target
    start: str
    changes: tuple[str, ...]
    is_dry: bool = False
    deadline_seconds: float | None = None
    """Replaces the computed deadline."""


def parse_message(value: bytes | None) -> Message:
    """Reads and normalises a message; an InputError says what is wrong with it."""
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
    """Pydantic's first complaint, in one sentence."""
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
    """The id of a message, also of one that is refused for another reason; None when it has no valid one."""
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


def check_target(target: Target, policy: Policy, topics: Mapping[str, int]) -> None:
    """Every rule about topics. `topics` are those of the broker, with the number of partitions."""
    check_named_topics(target.usersTopic, target.accountsTopic, policy)
    for topic in (target.usersTopic, target.accountsTopic):
        if topic not in topics:
            raise UnknownTopicError(topic)


def check_named_topics(users_topic: str | None, accounts_topic: str | None, policy: Policy) -> None:
    """The rules that neither the broker nor the present state is needed for; None is a topic that stays as it is."""
    for topic in (users_topic, accounts_topic):
        if topic is None:
            continue
        check_topic_name(topic)
        if topic == policy.control_topic:
            raise InputError(f"{topic} is the control topic and cannot be joined; name another topic")
        if policy.allowed_topics and not any(fnmatchcase(topic, allowed) for allowed in policy.allowed_topics):
            raise InputError(
                f"the topic {topic} is outside the allow-list ({', '.join(policy.allowed_topics)}); "
                "name an allowed one, or have it added to SWITCHYARD_ALLOWED_TOPICS"
            )
    if users_topic is not None and users_topic == accounts_topic:
        raise InputError(f"users and accounts cannot both come from the topic {users_topic}; name two topics")


def decide(
    message: Message,
    *,
    desired: Target | None,
    active: Target | None,
    policy: Policy,
    topics: Mapping[str, int],
    pending_start: str | None = None,
    is_snapshot: bool = False,
) -> Decision:
    """What a message asks for. An InputError is a rejection, and says why.

    `desired` is what was last asked for and has not failed, `active` what everybody reads; both are None at first.
    `pending_start` is where the swap that is under way starts: like its other fields it counts unless overridden.
    With `is_snapshot`, what is desired is a snapshot of history: a message that names a start asks for a stream. One
    that names `earliest` or a time asks for the topics to be read again, unless the swap under way does just that.
    """
    current = desired or policy.defaults
    target = Target(
        message.usersTopic or current.usersTopic,
        message.accountsTopic or current.accountsTopic,
        message.joinType or current.joinType,
    )
    check_target(target, policy, topics)
    changes = _changes(desired, target)
    reads_again = message.start not in (None, "latest", "resume")
    if target == desired and is_snapshot and message.start is not None:
        kind, changes = DecisionKind.SWAP, ("a stream takes the place of the snapshot",)
    elif target == desired and reads_again and message.start != pending_start:
        kind, changes = DecisionKind.SWAP, (f"the same topics are read again, from {message.start}",)
    elif target == desired:
        kind = DecisionKind.REFRESH
    elif target == active and not reads_again:
        kind = DecisionKind.TAKE_BACK
    else:
        kind = DecisionKind.SWAP
    # With nothing active there is nobody to have read what lies before: the first generation takes it all.
    start = message.start or pending_start or ("earliest" if active is None else "latest")
    return Decision(kind, target, start, changes, message.dryRun, message.deadlineSeconds)


def _changes(desired: Target | None, target: Target) -> tuple[str, ...]:
    if desired is None:
        return (f"nothing was asked for before; now {target}",)
    return tuple(
        f"{name} {getattr(desired, name)} → {getattr(target, name)}"
        for name in ("usersTopic", "accountsTopic", "joinType")
        if getattr(desired, name) != getattr(target, name)
    )
