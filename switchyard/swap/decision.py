"""Decide what a control message asks for. Pure: the caller passes the broker's topics and the present state."""

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
    """Keep the active generation: supersede the swap that would replace it."""


@dataclass(frozen=True)
class Decision:
    kind: DecisionKind
    target: Target
    start: str
    changes: tuple[str, ...]
    is_dry: bool = False
    deadline_seconds: float | None = None
    """Replaces the computed deadline."""


def check_target(target: Target, policy: Policy, topics: Mapping[str, int]) -> None:
    """Check every rule about topics. `topics` are those of the broker, with the number of partitions."""
    check_named_topics(target.usersTopic, target.accountsTopic, policy)
    for topic in (target.usersTopic, target.accountsTopic):
        if topic not in topics:
            raise UnknownTopicError(topic)


def check_named_topics(users_topic: str | None, accounts_topic: str | None, policy: Policy) -> None:
    """Check the rules that need neither the broker nor the present state; None is a topic that stays as it is."""
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
    """Return what a message asks for; raise InputError to reject it.

    `desired` is what was last asked for and has not failed, `active` what readers see; both are None at first.
    `pending_start` is where the pending swap starts; the message inherits it unless it names a start. `is_snapshot`
    says whether what is desired is a snapshot.
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
        # Only a stream has a start, so this message does not mean the snapshot.
        kind, changes = DecisionKind.SWAP, ("a stream takes the place of the snapshot",)
    elif target == desired and reads_again and message.start != pending_start:
        kind, changes = DecisionKind.SWAP, (f"the same topics are read again, from {message.start}",)
    elif target == desired:
        kind = DecisionKind.REFRESH
    elif target == active and not reads_again:
        kind = DecisionKind.TAKE_BACK
    else:
        kind = DecisionKind.SWAP
    # No earlier generation has read what the topics hold, so the first one starts at the earliest offsets.
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
