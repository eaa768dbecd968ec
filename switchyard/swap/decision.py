"""Decide what a control message asks for. Pure: the broker's topics and the present state are handed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from switchyard.errors import InputError
from switchyard.kafka.input_checks import check_topic_name
from switchyard.policies import Policy, Target
from switchyard.swap.control_message import Message


class UnknownTopicError(InputError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"the topic {topic} does not exist on the broker; create it or name another")
        self.topic = topic


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
