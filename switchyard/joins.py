"""The four joins, once, as functions of a users and an accounts frame: what `joined` must always be.

Input columns are those of the tables `users` and `accounts` without the generation. The stream reaches the same rows
in another way; audits, batch jobs and tests call these. Of several events the latest is the one with the highest ts,
then partition, then offset.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

JOINED_COLUMNS = (
    "userId",
    "name",
    "email",
    "age",
    "accountType",
    "balance",
    "userTs",
    "userPartition",
    "userOffset",
    "accountTs",
    "accountPartition",
    "accountOffset",
)
USER_KEY = ["userPartition", "userOffset"]
ACCOUNT_KEY = ["accountPartition", "accountOffset"]

Join = Callable[[DataFrame, DataFrame, timedelta | None], DataFrame]


def left(users: DataFrame, accounts: DataFrame, within: timedelta | None = None) -> DataFrame:
    """Every user event with every account event of its userId; one without any account once, with nulls.

    users:
    | userId | name | ts | offset |
    |--------|------|----|--------|
    | a      | Ann  | 1  | 0      |
    | b      | Bob  | 2  | 1      |
    accounts:
    | userId | accountType | ts | offset |
    |--------|-------------|----|--------|
    | a      | gold        | 3  | 0      |
    | a      | basic       | 4  | 1      |
    | c      | gold        | 5  | 2      |
    joined:
    | userId | name | userOffset | accountType | accountOffset |
    |--------|------|------------|-------------|---------------|
    | a      | Ann  | 0          | gold        | 0             |
    | a      | Ann  | 0          | basic       | 1             |
    | b      | Bob  | 1          | -           | -             |
    """
    return _join(users, accounts, within, "left")


def inner(users: DataFrame, accounts: DataFrame, within: timedelta | None = None) -> DataFrame:
    """Every user event with every account event of its userId.

    users:
    | userId | name | ts | offset |
    |--------|------|----|--------|
    | a      | Ann  | 1  | 0      |
    | a      | Anne | 9  | 1      |
    | b      | Bob  | 2  | 2      |
    accounts:
    | userId | accountType | ts | offset |
    |--------|-------------|----|--------|
    | a      | gold        | 3  | 0      |
    | c      | gold        | 5  | 1      |
    joined:
    | userId | name | userOffset | accountType | accountOffset |
    |--------|------|------------|-------------|---------------|
    | a      | Ann  | 0          | gold        | 0             |
    | a      | Anne | 1          | gold        | 0             |
    """
    return _join(users, accounts, within, "inner")


def natural(users: DataFrame, accounts: DataFrame, within: timedelta | None = None) -> DataFrame:
    """Every user event once, with the latest account event of its userId, or nulls.

    users:
    | userId | name | ts | offset |
    |--------|------|----|--------|
    | a      | Ann  | 1  | 0      |
    | a      | Anne | 9  | 1      |
    | b      | Bob  | 2  | 2      |
    accounts:
    | userId | accountType | ts | offset |
    |--------|-------------|----|--------|
    | a      | late        | 4  | 0      |
    | a      | early       | 3  | 1      |
    joined:
    | userId | name | userOffset | accountType | accountOffset |
    |--------|------|------------|-------------|---------------|
    | a      | Ann  | 0          | late        | 0             |
    | a      | Anne | 1          | late        | 0             |
    | b      | Bob  | 2          | -           | -             |
    """
    return _keep_latest(_join(users, accounts, within, "left"), USER_KEY, "account")


def asof(users: DataFrame, accounts: DataFrame, within: timedelta | None = None) -> DataFrame:
    """Every account event once, with the latest user event of its userId not after it, or nulls.

    users:
    | userId | name | ts | offset |
    |--------|------|----|--------|
    | a      | Ann  | 1  | 0      |
    | a      | Anne | 4  | 1      |
    | a      | Anna | 9  | 2      |
    accounts:
    | userId | accountType | ts | offset |
    |--------|-------------|----|--------|
    | a      | first       | 0  | 0      |
    | a      | second      | 4  | 1      |
    | b      | alone       | 5  | 2      |
    joined:
    | userId | name | userOffset | accountType | accountOffset |
    |--------|------|------------|-------------|---------------|
    | a      | -    | -          | first       | 0             |
    | a      | Anne | 1          | second      | 1             |
    | b      | -    | -          | alone       | 2             |
    """
    u, a = _named_users(users), _named_accounts(accounts)
    matches = [u["userId"] == a["accountUserId"], u["userTs"] <= a["accountTs"], *_bound(u, a, within)]
    rows = u.join(a, matches, "right").withColumn("userId", F.col("accountUserId"))
    return _keep_latest(rows.select(*JOINED_COLUMNS), ACCOUNT_KEY, "user")


JOINS: dict[str, Join] = {"left": left, "inner": inner, "natural": natural, "asof": asof}


def _join(users: DataFrame, accounts: DataFrame, within: timedelta | None, how: str) -> DataFrame:
    u, a = _named_users(users), _named_accounts(accounts)
    matches = [u["userId"] == a["accountUserId"], *_bound(u, a, within)]
    return u.join(a, matches, how).select(*JOINED_COLUMNS)


def _bound(users: DataFrame, accounts: DataFrame, within: timedelta | None) -> list[Column]:
    return [] if within is None else [is_within(users["userTs"], accounts["accountTs"], within)]


def is_within(user_ts: Column, account_ts: Column, within: timedelta) -> Column:
    """Whether two events are close enough to meet while the state of both is kept."""
    span = F.lit(within)
    return (user_ts >= account_ts - span) & (user_ts <= account_ts + span)


def _named_users(users: DataFrame) -> DataFrame:
    return users.select("userId", "name", "email", "age", *_positions("user"))


def _named_accounts(accounts: DataFrame) -> DataFrame:
    return accounts.select(F.col("userId").alias("accountUserId"), "accountType", "balance", *_positions("account"))


def _positions(side: str) -> list[Column]:
    return [F.col(name).alias(f"{side}{name.capitalize()}") for name in ("ts", "partition", "offset")]


def _keep_latest(rows: DataFrame, key: list[str], side: str) -> DataFrame:
    latest = [F.col(f"{side}{name}").desc_nulls_last() for name in ("Ts", "Partition", "Offset")]
    place = F.row_number().over(Window.partitionBy(*key).orderBy(*latest))
    return rows.withColumn("place", place).where("place = 1").drop("place")
