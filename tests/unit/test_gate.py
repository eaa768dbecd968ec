"""The verdict of the data gate: the rows of the stream and of the batch join as multisets."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from switchyard.stream.changes import ROW_SCHEMA
from switchyard.stream.gate import Verdict, judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHARE = 3


def row(user_id: str, offset: int = 0, **changes: Any) -> dict[str, Any]:
    user = {"userId": user_id, "name": "Ann", "email": "ann@example.org", "age": 30}
    account = {"accountType": "gold", "balance": 1.5, "accountTs": NOW, "accountPartition": 0, "accountOffset": offset}
    return user | account | {"userTs": NOW, "userPartition": 1, "userOffset": offset} | changes


def without_account(user_id: str, offset: int = 0) -> dict[str, Any]:
    names = ("accountType", "balance", "accountTs", "accountPartition", "accountOffset")
    return row(user_id, offset) | dict.fromkeys(names)


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), ROW_SCHEMA)


def user_ids(is_sampled: bool, count: int) -> list[str]:
    ids = (f"u{number}" for number in range(1000))
    return [user_id for user_id in ids if (zlib.crc32(user_id.encode()) % SHARE == 0) is is_sampled][:count]


A, B, LONELY = row("a"), row("b", 1), without_account("c", 2)


@pytest.mark.parametrize(
    ("expected", "actual", "verdict"),
    [
        ([], [], Verdict(0, 0, 0, 9)),
        ([A, B, LONELY], [LONELY, B, A], Verdict(3, 0, 0, 9)),
        ([A, B], [A], Verdict(1, 1, 0, 9)),
        ([A], [A, B], Verdict(2, 0, 1, 9)),
        ([A, B], [], Verdict(0, 2, 0, 9)),
        ([A], [A, A, A], Verdict(3, 0, 2, 9)),
        ([A, A], [A], Verdict(1, 1, 0, 9)),
        ([A, A], [A, A], Verdict(2, 0, 0, 9)),
        ([LONELY], [row("c", 2)], Verdict(1, 1, 1, 9)),
        ([row("a", balance=None)], [row("a", balance=0.0)], Verdict(1, 1, 1, 9)),
        ([row("a", name="")], [row("a", name=None)], Verdict(1, 1, 1, 9)),
        ([row("a", balance=None)], [row("a", balance=None)], Verdict(1, 0, 0, 9)),
        ([row("a", age=30)], [row("a", age=31)], Verdict(1, 1, 1, 9)),
    ],
    ids=[
        "empty",
        "another order",
        "missing",
        "extra",
        "all missing",
        "double",
        "once too few",
        "as often",
        "null row left over",
        "null for zero",
        "null for empty",
        "null and null",
        "other value",
    ],
)
def test_rows_are_compared_as_multisets(expected: list[Any], actual: list[Any], verdict: Verdict) -> None:
    assert judge(table(*expected), table(*actual), 1, 9) == verdict
    assert verdict.is_clean is (sorted(map(str, expected)) == sorted(map(str, actual)))


def test_of_a_share_only_its_users_are_compared() -> None:
    inside, outside = user_ids(True, 3), user_ids(False, 3)
    expected = [row(user_id) for user_id in inside]
    everybody = [row(user_id) for user_id in inside + outside]
    assert judge(table(*expected), table(*everybody), SHARE, 60) == Verdict(3, 0, 0, 60, SHARE)
    assert judge(table(*expected), table(*everybody[1:]), SHARE, 60) == Verdict(2, 1, 0, 60, SHARE)
    assert judge(table(*expected[1:]), table(*everybody), SHARE, 60) == Verdict(3, 0, 1, 60, SHARE)
    assert judge(table(*expected), table(*everybody, *everybody), SHARE, 60) == Verdict(6, 0, 3, 60, SHARE)


def test_a_share_without_users_has_nothing_to_compare() -> None:
    others = [row(user_id) for user_id in user_ids(False, 2)]
    assert judge(table(), table(*others), SHARE, 60) == Verdict(0, 0, 0, 60, SHARE)
    assert judge(table(), table(), SHARE, 60) == Verdict(0, 0, 0, 60, SHARE)


def test_a_share_is_of_the_bytes_of_the_id() -> None:
    """As Spark takes it: the checksum of UTF-8."""
    sampled = [name for name in ("é", "日本", "🙂", "ß", "ñ", "ü") if zlib.crc32(name.encode("utf-8")) % 2 == 0]
    everybody = [row(name) for name in ("é", "日本", "🙂", "ß", "ñ", "ü")]
    assert 0 < len(sampled) < 6
    assert judge(table(*[row(name) for name in sampled]), table(*everybody), 2, 6) == Verdict(len(sampled), 0, 0, 6, 2)


def test_the_verdict_in_words() -> None:
    assert Verdict(0, 0, 0, 0).describe() == "no records yet to compare"
    assert Verdict(3, 0, 0, 9).describe() == "3 joined rows of 9 records equal the batch join"
    said = Verdict(3, 1, 2, 9).describe()
    assert said == "of 3 joined rows of 9 records, 2 are not in the batch join and 1 of its rows are missing"
