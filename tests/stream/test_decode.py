"""Every kind of record that a topic may hold: taken as the contract says, or rejected with its reason."""

from __future__ import annotations

import base64
import json
import random
import re
from collections import Counter

import pytest
from pyspark.sql import Row, SparkSession

from switchyard.layout import Layout
from switchyard.records import LEFT, RIGHT, Side
from switchyard.stream.decode import _expressions, decode, plain_pattern
from switchyard.tables import store
from switchyard.tables.forgotten import owner_of
from tests.stream.running import Stream
from tests.stream.tables import parse_tables
from tests.topics import Topics

NOT_JSON = "the value is not one JSON document"
NOT_OBJECT = "the value is not a JSON object"
NO_ID = "userId is missing"
LONG_TEXT = "x" * 1_000_000

TAKEN: list[tuple[Side, bytes, dict[str, object]]] = [
    (
        LEFT,
        b'{"userId":"a","name":"n","email":"e","age":3}',
        {"userId": "a", "name": "n", "email": "e", "age": 3},
    ),
    (LEFT, b'  {"userId":"a"} \n', {"userId": "a", "name": None, "age": None}),
    (LEFT, b'{"userId":"a","name":null,"age":null}', {"userId": "a", "name": None, "age": None}),
    (LEFT, b'{"userId":42}', {"userId": "42"}),
    (LEFT, b'{"userId":-5}', {"userId": "-5"}),
    (LEFT, b'{"userId":123456789012345678901234567890}', {"userId": "123456789012345678901234567890"}),
    (LEFT, b'{"userId":1.5}', {"userId": "1.5"}),
    (LEFT, b'{"userId":""}', {"userId": ""}),
    (LEFT, b'{"userId":"a","userId":"b"}', {"userId": "b"}),
    (LEFT, b'{"userId":"a","unknown":{"deep":[1,{"userId":"z"}]}}', {"userId": "a"}),
    (LEFT, '{"userId":"ключ","name":"名前 🙂"}'.encode(), {"userId": "ключ", "name": "名前 🙂"}),
    (LEFT, b'{"userId":"a","name":"\\u0000\\ud83d\\ude42"}', {"name": "\x00🙂"}),
    (LEFT, b'{"userId":"a","age":-9223372036854775808}', {"age": -9223372036854775808}),
    (LEFT, json.dumps({"userId": "a", "name": LONG_TEXT}).encode(), {"name": LONG_TEXT}),
    (
        RIGHT,
        b'{"userId":"a","accountType":"gold","balance":1.5}',
        {"accountType": "gold", "balance": 1.5},
    ),
    (RIGHT, b'{"userId":"a","balance":100}', {"balance": 100.0}),
    (RIGHT, b'{"userId":"a","balance":-1e10}', {"balance": -1e10}),
    (RIGHT, b'{"userId":"a","balance":0.1}', {"balance": 0.1}),
    (
        RIGHT,
        b'{"userId":"a","balance":123456789012345678901234567890.25}',
        {"balance": 1.2345678901234568e29},
    ),
]
REJECTED: list[tuple[Side, bytes, str]] = [
    (LEFT, b"", NOT_JSON),
    (LEFT, b"hello", NOT_JSON),
    (LEFT, b'{"userId":"a"', NOT_JSON),
    (LEFT, b'{"userId":"a"} x', NOT_JSON),
    (LEFT, b'{"userId":"a"}{"userId":"b"}', NOT_JSON),
    (LEFT, b'{"userId":"a"},{"userId":"b"}', NOT_JSON),
    (LEFT, b'{"userId":"a"}]', NOT_JSON),
    (LEFT, b"{'userId':'a'}", NOT_JSON),
    (LEFT, b'{"userId":"a",}', NOT_JSON),
    (LEFT, b'{"userId":"a","age":NaN}', NOT_JSON),
    (LEFT, b'{"userId":"\\ud83d"}', NOT_JSON),
    (LEFT, b'{"userId":"a","n":' + b"[" * 1200 + b"]" * 1200 + b"}", NOT_JSON),
    (LEFT, b"null", NOT_OBJECT),
    (LEFT, b"7", NOT_OBJECT),
    (LEFT, b'"text"', NOT_OBJECT),
    (LEFT, b'[{"userId":"a"}]', NOT_OBJECT),
    (LEFT, b"{}", NO_ID),
    (LEFT, b'{"userId":null}', NO_ID),
    (LEFT, b'{"USERID":"a"}', NO_ID),
    (LEFT, b'{"userId":true}', "userId must be a string or a number, is boolean"),
    (LEFT, b'{"userId":{"x":1}}', "userId must be a string or a number, is object"),
    (LEFT, b'{"userId":["a"]}', "userId must be a string or a number, is array"),
    (LEFT, b'{"userId":"a","name":7}', "name must be a string, is bigint"),
    (LEFT, b'{"userId":"a","email":["e"]}', "email must be a string, is array"),
    (LEFT, b'{"userId":"a","age":"3"}', "age must be a whole number of 64 bits, is string"),
    (LEFT, b'{"userId":"a","age":3.5}', "age must be a whole number of 64 bits, is decimal"),
    (
        LEFT,
        b'{"userId":"a","age":9223372036854775808}',
        "age must be a whole number of 64 bits, is decimal",
    ),
    (RIGHT, b'{"userId":"a","accountType":false}', "accountType must be a string, is boolean"),
    (RIGHT, b'{"userId":"a","balance":"1"}', "balance must be a number, is string"),
    (RIGHT, b'{"userId":"a","balance":NaN}', NOT_JSON),
    (RIGHT, b'{"userId":"a","balance":1e999}', "balance is too large for a double"),
]


def decode_values(spark: SparkSession, values: list[bytes | None], side: Side) -> list[Row]:
    rows = [(bytearray(v) if v is not None else None, 0, i) for i, v in enumerate(values)]
    frame = spark.createDataFrame(rows, "value binary, partition int, offset long").selectExpr(
        "*", "timestamp_millis(0) as timestamp"
    )
    return sorted(decode(frame, side).collect(), key=lambda row: row["offset"])


@pytest.mark.parametrize("side", [LEFT, RIGHT], ids=["users", "accounts"])
def test_valid_records_are_taken_as_they_are(spark: SparkSession, side: Side) -> None:
    cases = [(value, expected) for kind, value, expected in TAKEN if kind is side]
    for (value, expected), row in zip(cases, decode_values(spark, [value for value, _ in cases], side), strict=True):
        assert (row["kind"], row["reason"]) == ("valid", None), value[:80]
        assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("side", [LEFT, RIGHT], ids=["users", "accounts"])
def test_bad_records_are_rejected_with_the_reason_and_the_raw_value(spark: SparkSession, side: Side) -> None:
    cases = [(value, reason) for kind, value, reason in REJECTED if kind is side]
    rows = decode_values(spark, [value for value, _ in cases], side)
    assert [(row["kind"], row["reason"], row["text"]) for row in rows] == [
        ("reject", reason, value.decode()) for value, reason in cases
    ]
    assert all(row[field.name] is None for row in rows for field in side.fields)
    # What of a person can be recognized in a stored value must be recognized in the stream as well.
    owners = [owner_of(value.decode()) for value, reason in cases if reason != NOT_JSON]
    assert [row["owner"] for row in rows if row["reason"] != NOT_JSON] == owners
    assert "a" in owners


def test_bytes_that_are_not_text_are_kept_as_base64(spark: SparkSession) -> None:
    values: list[bytes | None] = [b"\xff\xfe", b'{"userId":"\xff"}']
    rows = decode_values(spark, values, LEFT)
    assert {row["reason"] for row in rows} == {"the value is not UTF-8 text (it is kept here as base64)"}
    assert [base64.b64decode(row["text"]) for row in rows] == values


def test_a_tombstone_is_neither_valid_nor_rejected(spark: SparkSession) -> None:
    assert [(row["kind"], row["reason"]) for row in decode_values(spark, [None], LEFT)] == [("tombstone", None)]


def test_docstring_table_holds(spark: SparkSession) -> None:
    table = parse_tables(decode.__doc__ or "")[""]
    values = [row["value"].encode() if row["value"] else None for row in table]
    for row, found in zip(table, decode_values(spark, values, LEFT), strict=True):
        assert (found["kind"], found["userId"], found["reason"]) == (
            row["kind"],
            row["userId"],
            row["reason"],
        )


@pytest.mark.parametrize("small_batch_records", [100_000, 0], ids=["small", "bulk"])
def test_every_record_of_a_topic_is_accounted_for(
    spark: SparkSession, layout: Layout, topics: Topics, small_batch_records: int
) -> None:
    users = [value for kind, value, _ in [*TAKEN, *REJECTED] if kind is LEFT]
    accounts = [value for kind, value, _ in [*TAKEN, *REJECTED] if kind is RIGHT]
    now_ms = store.now_ms()
    topics.send_raw(topics.users, [*users, None, b"\xff"], ts_ms=now_ms)
    topics.send_raw(topics.accounts, [None, *accounts], partition=1, ts_ms=now_ms)
    stream = Stream.prepare(spark, layout, topics, "left", small_batch_records=small_batch_records)
    stream.run_attempt()
    audit = stream.audit()
    assert (audit.missing, audit.extra, audit.unaccounted, audit.holes) == (0, 0, 0, 0)
    rejects = store.read_rows(layout, "rejects")
    assert len(rejects) == len(REJECTED) + 1
    assert {(row["topic"], row["partition"]) for row in rejects} == {(topics.users, 0), (topics.accounts, 1)}
    by_reason = {(row["reason"], row["value"]) for row in rejects}
    assert by_reason >= {(reason, value.decode()) for _, value, reason in REJECTED}


# Pieces of documents, so put together that most are nearly plain: one thing may be wrong, odd, or there twice.
SPACES = ["", " ", "\n", "\t ", "\x0b", "\ufeff"]
NAMES = ["userId", "userid", "name", "email", "age", "accountType", "balance", "other", "", "a b", "ü", "user\\u0049d"]
STRINGS = [
    '"a"',
    '""',
    '"ключ 🙂"',
    '"\\n"',
    '"\\\\"',
    '"\\u0041"',
    '"\x01"',
    '"\x7f"',
    '"}"',
    '","',
    "'a'",
    '"a',
    '"/"',
]
NUMERALS = ["0", "-0", "0.0", "-0.0", "-0.5", "0.1", "7", "-7", "1.50", "1.0", "100", "007", "+1", ".5", "5.", "1e3"]
NUMERALS += ["-1E-3", "0.1e1", "1e400", "123456789012345", "1234567890123456", "9223372036854775807"]
NUMERALS += ["9223372036854775808", "9007199254740993", "999999999999999.999999", "12345.1234567"]
OTHERS = ["null", "true", "false", "True", "NaN", "{}", "[]", '{"userId": "z"}', '["userId"]', "", ","]
ENDS = ["", " ", ",", "]", "}", "x", "\x00", "{}"]


def draw_document(draw: random.Random) -> bytes:
    def odd(pieces: list[str], usual: str) -> str:
        return draw.choice(pieces) if draw.random() < 0.06 else usual

    def member() -> str:
        value = draw.choice(draw.choice([STRINGS[:3], STRINGS, NUMERALS, OTHERS]))
        return f'{odd(SPACES, "")}"{draw.choice(NAMES)}"{odd(SPACES, " ")}:{odd(SPACES, " ")}{value}{odd(SPACES, "")}'

    members = [member() for _ in range(draw.randrange(4))]
    members += [f'"userId": {draw.choice(STRINGS[:3])}'] * (draw.random() < 0.8)
    draw.shuffle(members)
    document = f"{odd(SPACES, '')}{{{odd([',', ' ,'], ',').join(members)}}}{odd(SPACES, '')}{odd(ENDS, '')}".encode()
    return document + (b"\xff" if draw.random() < 0.02 else b"")


@pytest.mark.parametrize("side", [LEFT, RIGHT], ids=["users", "accounts"])
def test_plain_records_are_read_as_the_strict_way_would(
    spark: SparkSession, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(20_000)
    documents: list[bytes | None] = [draw_document(draw) for _ in range(20_000)]
    quick = decode_values(spark, documents, side)
    monkeypatch.setattr("switchyard.stream.decode.MOST_PLAIN_BYTES", -1)
    _expressions.cache_clear()
    try:
        strict = decode_values(spark, documents, side)
    finally:
        _expressions.cache_clear()
    # As text: 0.0 equals -0.0.
    different = [
        (value, *rows) for value, *rows in zip(documents, quick, strict, strict=True) if len(set(map(repr, rows))) > 1
    ]
    assert different == []
    kinds = Counter(row["kind"] for row in quick)
    assert min(kinds["valid"], kinds["reject"]) > 2_000, kinds
    pattern = plain_pattern(side).replace(r"\z", r"\Z")
    plain = [re.search(pattern, value.decode(errors="replace")) for value in documents if value]
    assert 2_000 < sum(map(bool, plain)) < 18_000, "the drawn documents do not try both ways"
