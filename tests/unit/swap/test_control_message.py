"""Every rule of the contract about the fields of a control message, and what hostile senders may think of."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import InputError
from switchyard.kafka.input_checks import parse_moment
from switchyard.swap.control_message import (
    MOST_BYTES,
    MOST_DEADLINE_SECONDS,
    Message,
    normalise_join,
    normalise_start,
    parse_message,
    read_id,
)
from switchyard.swap.decision import DecisionKind
from tests.unit.swap.test_decision import TOPICS, decide_on, parse


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Message()),
        ({"usersTopic": "users-2"}, Message(usersTopic="users-2")),
        ({"usersTopic": "  users-2\t\n"}, Message(usersTopic="users-2")),
        ({"usersTopic": "", "accountsTopic": " \t", "joinType": "  ", "start": " ", "id": ""}, Message()),
        ({"usersTopic": None, "joinType": None, "start": None, "dryRun": None, "id": None}, Message()),
        ({"joinType": " INNER "}, Message(joinType="inner")),
        ({"joinType": "NaTuRaL"}, Message(joinType="natural")),
        ({"start": " LATEST "}, Message(start="latest")),
        ({"start": "Earliest"}, Message(start="earliest")),
        ({"start": "resume"}, Message(start="resume")),
        ({"start": "2026-01-31T12:00:00Z"}, Message(start="2026-01-31T12:00:00Z")),
        ({"start": "2026-01-31"}, Message(start="2026-01-31")),
        ({"dryRun": True}, Message(dryRun=True)),
        ({"dryRun": False}, Message()),
        ({"deadlineSeconds": 300}, Message(deadlineSeconds=300.0)),
        ({"deadlineSeconds": 0.5}, Message(deadlineSeconds=0.5)),
        ({"deadlineSeconds": None}, Message()),
        ({"deadlineSeconds": MOST_DEADLINE_SECONDS}, Message(deadlineSeconds=MOST_DEADLINE_SECONDS)),
        ({"id": " order-7 "}, Message(id="order-7")),
        ({"id": "x" * 200}, Message(id="x" * 200)),
        ({"id": f" {'x' * 200} "}, Message(id="x" * 200)),
        ({"id": "ü" * 200}, Message(id="ü" * 200)),
        ({"id": "a\u0000b"}, Message(id="a\u0000b")),
    ],
)
def test_fields_are_normalised(fields: dict[str, object], expected: Message) -> None:
    assert parse(**fields) == expected


@pytest.mark.parametrize(
    ("name", "means"),
    [
        *[
            (spelling, "left")
            for spelling in ("left", "Left_Outer", "leftouter", "left outer", "LEFT JOIN", "left-outer")
        ],
        *[(spelling, "inner") for spelling in ("inner", "inner join", "InnerJoin", "inner_join", "join", " JOIN ")],
        *[(spelling, "natural") for spelling in ("natural", "natural_join", "NATURAL JOIN", "naturalJoin")],
        *[
            (spelling, "asof")
            for spelling in ("asof", "as-of", "as of", "AS_OF", "asof join", "as-of-join", "aj", "AJ")
        ],
    ],
)
def test_spellings_of_the_join_types(name: str, means: str) -> None:
    assert parse(joinType=name) == Message(joinType=means)


@pytest.mark.parametrize("name", ["right", "outer", "full", "1", "İnner", "as", "ajar", "joined", "x" * 5000])
def test_an_unknown_join_means_left_and_a_warning(name: str) -> None:
    message = parse(joinType=name)
    assert message.joinType == "left"
    (warning,) = message.warnings
    assert "is not a join type, so left is taken; known are left, inner, natural, asof" in warning
    assert len(warning) < 400


def test_no_join_is_no_change_and_no_warning() -> None:
    assert normalise_join(None) == (None, ())


def test_other_fields_are_ignored_and_named() -> None:
    message = parse(usersTopic="users-2", colour="red", UsersTopic="accounts", at=[1])
    assert message == Message(usersTopic="users-2", warnings=("ignored: UsersTopic, at, colour",))


def test_the_names_of_many_other_fields_are_cut() -> None:
    (warning,) = parse(**{f"field-{number}": 1 for number in range(1000)}).warnings
    assert len(warning) < 250


def test_of_a_field_that_comes_twice_the_last_counts() -> None:
    assert parse_message(b'{"joinType": "inner", "joinType": "asof"}').joinType == "asof"


@pytest.mark.parametrize(
    "value",
    [b'\xef\xbb\xbf{"joinType": "inner"}', b' \n{"joinType":"inner"}\t', b'{"join\\u0054ype": "inner"}'],
    ids=["BOM", "white space", "escape"],
)
def test_unusual_json_is_json(value: bytes) -> None:
    assert parse_message(value).joinType == "inner"


NOT_JSON = {
    "empty": b"",
    "white space": b"  ",
    "text": b"hello",
    "unfinished": b'{"joinType": "inner"',
    "more after it": b"{} {}",
    "single quotes": b"{'joinType': 'inner'}",
    "a comment": b"{} // done",
    "not UTF-8": b'{"joinType": "\xff"}',
    "UTF-16": '{"joinType": "inner"}'.encode("utf-16"),
    "only a BOM": b"\xef\xbb\xbf",
    "null bytes": b"\x00\x00\x00",
    "a null byte in a text": b'{"joinType": "in\x00ner"}',
    "a null byte after it": b"{}\x00",
    "NaN": b'{"joinType": NaN}',
    "Infinity in another field": b'{"other": -Infinity}',
    "an integer of 5000 digits": b'{"other": ' + b"9" * 5000 + b"}",
    "deep lists": b"[" * 60_000,
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "deep in another field": b'{"other": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
}


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_json_is_rejected(value: bytes) -> None:
    with pytest.raises(InputError, match=r"the message is not JSON: .") as refusal:
        parse_message(value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"[]", "a list"),
        (b'[{"joinType": "inner"}]', "a list"),
        (b'"inner"', "a text"),
        (b"1", "a number"),
        (b"1e999", "a number"),
        (b"true", "true or false"),
        (b"null", "null"),
    ],
)
def test_what_is_not_an_object_is_rejected(value: bytes, kind: str) -> None:
    with pytest.raises(InputError, match=f"^the message must be a JSON object, not {kind}$"):
        parse_message(value)


def test_a_tombstone_is_rejected() -> None:
    with pytest.raises(InputError, match="the message has no value; send a JSON object such as"):
        parse_message(None)


def test_the_size_is_checked_before_the_content() -> None:
    longest = b'{"joinType": "inner"}'.ljust(MOST_BYTES)
    assert parse_message(longest).joinType == "inner"
    with pytest.raises(InputError, match=r"^the message has 65537 bytes; at most 65536 are allowed$"):
        parse_message(longest + b" ")
    with pytest.raises(InputError, match="at most 65536"):
        parse_message(b"[" * (MOST_BYTES + 1))


@pytest.mark.parametrize("name", ["usersTopic", "accountsTopic", "joinType", "start", "id"])
@pytest.mark.parametrize(
    ("given_value", "kind"),
    [
        (7, "a number"),
        (10**400, "a number"),
        (0.5, "a number"),
        (True, "true or false"),
        (["a"], "a list"),
        ({}, "an object"),
    ],
)
def test_a_text_of_another_type_is_rejected(name: str, given_value: object, kind: str) -> None:
    with pytest.raises(InputError, match=f"^{name} must be a text, not {kind}$"):
        parse(**{name: given_value})


@pytest.mark.parametrize(
    ("given_value", "kind"), [(1, "a number"), (0, "a number"), ("true", "a text"), ([], "a list")]
)
def test_dry_run_is_true_or_false(given_value: object, kind: str) -> None:
    with pytest.raises(InputError, match=f"^dryRun must be true or false, not {kind}$"):
        parse(dryRun=given_value)


@pytest.mark.parametrize(
    ("given_value", "shown"),
    [
        (b"true", "true or false"),
        (b'"300"', "a text"),
        (b'""', "a text"),
        (b"[300]", "a list"),
        (b"0", "0"),
        (b"-0.0", "-0.0"),
        (b"-5", "-5"),
        (b"1e400", "inf"),
        (b"31536001", "31536001"),
        (b"9" * 4000, "9" * 200 + "…"),
    ],
)
def test_a_deadline_is_a_number_above_0_and_up_to_a_year(given_value: bytes, shown: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_message(b'{"deadlineSeconds": ' + given_value + b"}")
    expected = f"deadlineSeconds must be a number above 0 and up to 31536000 (a year), not {shown}"
    assert str(refusal.value) == expected


def test_a_deadline_alone_is_no_change_and_is_not_part_of_what_is_wanted() -> None:
    assert decide_on(parse(deadlineSeconds=300)).kind is DecisionKind.REFRESH
    plain, hurried = decide_on(parse(joinType="inner")), decide_on(parse(joinType="inner", deadlineSeconds=7))
    assert (plain.deadline_seconds, hurried.deadline_seconds) == (None, 7.0)
    assert replace(hurried, deadline_seconds=None) == plain


def test_an_id_of_201_characters_is_rejected() -> None:
    with pytest.raises(InputError, match=r"^id has 201 characters; at most 200 are allowed$"):
        parse(id="x" * 201)


@pytest.mark.parametrize(
    "start", ["yesterday", "12:00", "2026-13-01", "1767225600", "-1", "2026-01-01T25:00", "x" * 999]
)
def test_a_start_that_is_no_moment_is_rejected(start: str) -> None:
    with pytest.raises(InputError, match="is none of latest, earliest, resume and an ISO timestamp like") as refusal:
        parse(start=start)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("start", ["1969-12-31T23:59:59Z", "0001-01-01", "1970-01-01T00:30:00+01:00"])
def test_a_start_before_1970_is_rejected(start: str) -> None:
    """Kafka takes some negative timestamps for names of positions."""
    with pytest.raises(InputError, match="is before 1970; use earliest to read everything"):
        normalise_start(start)


def test_a_moment_without_a_zone_is_utc() -> None:
    assert parse_moment("2026-01-31T12:00:00") == parse_moment("2026-01-31T13:00:00+01:00")


UNPRINTABLE = {
    "id": rb'{"id": "a\ud800"}',
    "start": rb'{"start": "2026-01-31\ud80012:00:00"}',
    "join type": rb'{"joinType": "\udfff"}',
    "topic": rb'{"usersTopic": "\udfff"}',
    "name of another field": rb'{"\udfff": 1}',
}


@pytest.mark.parametrize("value", UNPRINTABLE.values(), ids=UNPRINTABLE.keys())
def test_nothing_that_no_table_can_hold_passes(value: bytes) -> None:
    """JSON may name half a character, which is no UTF-8: writing it to a log or the history would raise."""
    try:
        message = parse_message(value)
        decide_on(message)
    except InputError as refusal:
        str(refusal).encode()
    else:
        texts = [message.usersTopic, message.joinType, message.start, message.id, *message.warnings]
        assert [text.encode() for text in texts if text is not None]


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_a_message_or_refused(value: bytes) -> None:
    assert_message_or_refusal(value)


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
FIELD_NAMES = st.sampled_from(
    ["usersTopic", "accountsTopic", "joinType", "start", "dryRun", "deadlineSeconds", "id", "other"]
)


@given(st.dictionaries(FIELD_NAMES, JSON_VALUES, max_size=7))
def test_any_object_is_a_message_or_refused(fields: dict[str, object]) -> None:
    assert_message_or_refusal(json.dumps(fields).encode())


def assert_message_or_refusal(value: bytes) -> None:
    try:
        message = parse_message(value)
        decision = decide_on(message)
    except InputError:
        return
    assert decision.target.joinType in ("left", "inner", "natural", "asof")
    assert {decision.target.usersTopic, decision.target.accountsTopic} <= set(TOPICS)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b'{"id": " mine "}', "mine"),
        (b'{"id": "mine", "usersTopic": 7}', "mine"),
        (b'{"id": "mine", "start": "soon"}', "mine"),
        (b'{"id": 7}', None),
        (b'{"id": " "}', None),
        (b'{"id": "\\ud800"}', None),
        (b'{"id": "rollback-1"}', None),
        (b'{"id": "' + b"x" * 201 + b'"}', None),
        (b'{"id": "mine", "pad": "' + b"x" * MOST_BYTES + b'"}', None),
        (b'["id"]', None),
        (b"{", None),
        (None, None),
    ],
)
def test_the_id_of_a_message_is_found_also_when_the_message_is_refused(value: bytes | None, found: str | None) -> None:
    assert read_id(value) == found
