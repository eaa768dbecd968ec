"""Every rule of the contract about what a control message asks for."""

from __future__ import annotations

import json

import pytest

from switchyard.errors import InputError
from switchyard.policies import Policy, Target
from switchyard.swap.control_message import (
    Message,
    parse_message,
)
from switchyard.swap.decision import Decision, DecisionKind, check_named_topics, check_target, decide

ACTIVE = Target("users", "accounts", "left")
OTHER = Target("users-2", "accounts", "inner")
POLICY = Policy(defaults=ACTIVE)
TOPICS = dict.fromkeys(("users", "accounts", "users-2", "control", "eu.users", "eu.accounts", "Users"), 1)


def parse(**fields: object) -> Message:
    return parse_message(json.dumps(fields).encode())


def decide_on(
    message: Message, desired: Target | None = ACTIVE, active: Target | None = ACTIVE, policy: Policy = POLICY
) -> Decision:
    return decide(message, desired=desired, active=active, policy=policy, topics=TOPICS)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "is not a topic name"),
        (".", "is not a topic name"),
        ("..", "is not a topic name"),
        ("__consumer_offsets", "is not a topic name"),
        ("a/b", "is not a topic name"),
        ("a b", "is not a topic name"),
        ("users\n", "is not a topic name"),
        ("üsers", "is not a topic name"),
        ("users\u0000", "is not a topic name"),
        ("../../etc", "is not a topic name"),
        ("x" * 250, "is not a topic name"),
        ("x" * 60_000, "is not a topic name"),
        ("x" * 249, "does not exist on the broker; create it or name another"),
        ("_users", "does not exist on the broker"),
        ("missing", "the topic missing does not exist on the broker"),
        ("control", "control is the control topic and cannot be joined"),
    ],
)
def test_topics_that_are_refused(topic: str, reason: str) -> None:
    for target in (Target(topic, "accounts", "left"), Target("users", topic, "left")):
        with pytest.raises(InputError, match=reason) as refusal:
            check_target(target, POLICY, TOPICS)
        assert len(str(refusal.value)) < 500


def test_users_and_accounts_are_two_topics() -> None:
    with pytest.raises(InputError, match="both come from the topic accounts; name two topics"):
        decide_on(parse(usersTopic="accounts"))
    with pytest.raises(InputError, match="cannot both come from the topic users"):
        decide_on(parse(accountsTopic="users"))
    assert decide_on(parse(usersTopic="accounts", accountsTopic="users")).target == Target("accounts", "users", "left")


def test_the_control_topic_is_the_one_of_the_settings() -> None:
    policy = Policy(ACTIVE, control_topic="users-2")
    with pytest.raises(InputError, match="users-2 is the control topic"):
        decide_on(parse(usersTopic="users-2"), policy=policy)
    assert decide_on(parse(usersTopic="control"), policy=policy).target.usersTopic == "control"


@pytest.mark.parametrize(
    ("allowed", "users", "accounts", "is_allowed"),
    [
        ((), "users", "accounts", True),
        (("*",), "users", "accounts", True),
        (("users", "accounts"), "users", "accounts", True),
        (("users",), "users", "accounts", False),
        (("eu.*",), "eu.users", "eu.accounts", True),
        (("eu.*",), "users", "eu.accounts", False),
        (("*users", "accounts"), "eu.users", "accounts", True),
        (("users", "accounts"), "Users", "accounts", False),
        (("user", "accounts"), "users", "accounts", False),
        (("sers", "accounts"), "users", "accounts", False),
    ],
)
def test_the_allow_list(allowed: tuple[str, ...], users: str, accounts: str, is_allowed: bool) -> None:
    policy, target = Policy(ACTIVE, allowed_topics=allowed), Target(users, accounts, "left")
    if is_allowed:
        check_target(target, policy, TOPICS)
        return
    with pytest.raises(InputError, match=r"is outside the allow-list \(.*; name an allowed one, or have it added"):
        check_target(target, policy, TOPICS)


def test_a_topic_that_is_not_named_is_not_checked_before_a_message_is_sent() -> None:
    policy = Policy(ACTIVE, allowed_topics=("eu.*",))
    check_named_topics(None, None, policy)
    check_named_topics(None, "eu.accounts", policy)
    with pytest.raises(InputError, match="the topic accounts is outside the allow-list"):
        check_named_topics(None, "accounts", policy)


def test_a_topic_outside_the_allow_list_is_not_looked_for() -> None:
    """A person who may not name it does not learn whether it exists."""
    with pytest.raises(InputError, match="outside the allow-list"):
        check_target(Target("missing", "accounts", "left"), Policy(ACTIVE, allowed_topics=("accounts",)), TOPICS)


def test_what_is_already_wanted_is_checked_again() -> None:
    """A topic that was deleted, or an allow-list that has changed, is found by the next message."""
    with pytest.raises(InputError, match="users-2 is outside the allow-list"):
        decide_on(Message(), desired=OTHER, policy=Policy(ACTIVE, allowed_topics=("users", "accounts")))


@pytest.mark.parametrize(
    ("fields", "desired", "active", "kind", "target"),
    [
        ({}, ACTIVE, ACTIVE, DecisionKind.REFRESH, ACTIVE),
        ({"joinType": "LEFT"}, ACTIVE, ACTIVE, DecisionKind.REFRESH, ACTIVE),
        ({"start": "latest"}, ACTIVE, ACTIVE, DecisionKind.REFRESH, ACTIVE),
        ({"start": "resume"}, ACTIVE, ACTIVE, DecisionKind.REFRESH, ACTIVE),
        ({"start": "earliest"}, ACTIVE, ACTIVE, DecisionKind.SWAP, ACTIVE),
        ({"start": "2026-01-31"}, OTHER, ACTIVE, DecisionKind.SWAP, OTHER),
        ({"joinType": "inner"}, ACTIVE, ACTIVE, DecisionKind.SWAP, Target("users", "accounts", "inner")),
        ({"usersTopic": "users-2", "joinType": "inner"}, ACTIVE, ACTIVE, DecisionKind.SWAP, OTHER),
        ({}, OTHER, ACTIVE, DecisionKind.REFRESH, OTHER),
        ({"joinType": "asof"}, OTHER, ACTIVE, DecisionKind.SWAP, Target("users-2", "accounts", "asof")),
        ({"joinType": "left"}, OTHER, ACTIVE, DecisionKind.SWAP, Target("users-2", "accounts", "left")),
        ({"usersTopic": "users", "joinType": "left"}, OTHER, ACTIVE, DecisionKind.TAKE_BACK, ACTIVE),
        ({}, None, None, DecisionKind.SWAP, ACTIVE),
        ({"joinType": "inner"}, None, None, DecisionKind.SWAP, Target("users", "accounts", "inner")),
        ({"joinType": "inner"}, OTHER, None, DecisionKind.REFRESH, OTHER),
        ({"joinType": "left"}, OTHER, None, DecisionKind.SWAP, Target("users-2", "accounts", "left")),
        ({"joinType": "sideways"}, ACTIVE, ACTIVE, DecisionKind.REFRESH, ACTIVE),
    ],
)
def test_what_a_message_asks_for(
    fields: dict[str, object], desired: Target | None, active: Target | None, kind: DecisionKind, target: Target
) -> None:
    decision = decide_on(parse(**fields), desired, active)
    assert (decision.kind, decision.target) == (kind, target)


@pytest.mark.parametrize(
    ("fields", "desired", "kind"),
    [
        ({}, ACTIVE, DecisionKind.REFRESH),
        ({"joinType": "left"}, ACTIVE, DecisionKind.REFRESH),
        ({"start": "resume"}, ACTIVE, DecisionKind.SWAP),
        ({"start": "latest", "joinType": "left"}, ACTIVE, DecisionKind.SWAP),
        ({"joinType": "asof"}, ACTIVE, DecisionKind.SWAP),
    ],
)
def test_over_a_snapshot_a_message_with_a_start_asks_for_a_stream(
    fields: dict[str, object], desired: Target, kind: DecisionKind
) -> None:
    message = parse(**fields)
    decision = decide(message, desired=desired, active=ACTIVE, policy=POLICY, topics=TOPICS, is_snapshot=True)
    assert decision.kind is kind
    assert bool(decision.changes) is (kind is DecisionKind.SWAP)


@pytest.mark.parametrize(
    ("given_start", "pending", "active", "start"),
    [
        (None, None, ACTIVE, "latest"),
        (None, None, None, "earliest"),
        ("latest", None, None, "latest"),
        ("resume", None, ACTIVE, "resume"),
        ("2026-01-31T12:00:00Z", None, ACTIVE, "2026-01-31T12:00:00Z"),
        (None, "earliest", ACTIVE, "earliest"),
        ("latest", "earliest", ACTIVE, "latest"),
    ],
)
def test_where_it_starts(given_start: str | None, pending: str | None, active: Target | None, start: str) -> None:
    decision = decide(
        Message(joinType="asof", start=given_start),
        desired=OTHER if pending else active,
        active=active,
        policy=POLICY,
        topics=TOPICS,
        pending_start=pending,
    )
    assert decision.start == start


def test_a_dry_run_is_decided_like_the_real_one() -> None:
    real, dry = decide_on(parse(joinType="inner")), decide_on(parse(joinType="inner", dryRun=True))
    assert (real.is_dry, dry.is_dry) == (False, True)
    assert (real.kind, real.target, real.start, real.changes) == (dry.kind, dry.target, dry.start, dry.changes)
    with pytest.raises(InputError, match="does not exist"):
        decide_on(parse(usersTopic="missing", dryRun=True))


def test_the_changes_are_told() -> None:
    assert decide_on(parse(usersTopic="users-2", joinType="inner")).changes == (
        "usersTopic users → users-2",
        "joinType left → inner",
    )
    assert decide_on(Message()).changes == ()
    (change,) = decide_on(Message(), None, None).changes
    assert change == "nothing was asked for before; now users and accounts, left join"
