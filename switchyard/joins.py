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

from switchyard.records import JOINED, KEY, LEFT, RIGHT, Side

JOINED_COLUMNS = tuple(JOINED)

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
    last_ts = F.lit(None).cast("timestamp") if within is None else F.col(LEFT.ts) + F.lit(within)
    return _find_latest(users, accounts, within, of=LEFT, last_ts=last_ts)


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
    return _find_latest(users, accounts, within, of=RIGHT, last_ts=F.col(RIGHT.ts))


JOINS: dict[str, Join] = {"left": left, "inner": inner, "natural": natural, "asof": asof}


def _join(users: DataFrame, accounts: DataFrame, within: timedelta | None, how: str) -> DataFrame:
    left, right = _named(users, accounts)
    is_match = F.col(LEFT.key) == F.col(RIGHT.own_key)
    matches = is_match if within is None else is_match & is_within(within)
    return left.join(right, matches, how).select(*JOINED_COLUMNS)


def _named(users: DataFrame, accounts: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Give both sides the columns of `joined`; the key of the right one has a name that the left one has not."""
    left = users.select(*LEFT.columns, *_positions(LEFT))
    right = accounts.select(F.col(RIGHT.key).alias(RIGHT.own_key), *RIGHT.values, *_positions(RIGHT))
    return left, right


def is_within(within: timedelta) -> Column:
    """Whether two events are close enough to meet while the state of both is kept."""
    span, left, right = F.lit(within), F.col(LEFT.ts), F.col(RIGHT.ts)
    return (left >= right - span) & (left <= right + span)


def _positions(side: Side) -> list[Column]:
    return [F.col(own).alias(name) for own, name in side.position.items()]


def _find_latest(
    users: DataFrame, accounts: DataFrame, within: timedelta | None, of: Side, last_ts: Column
) -> DataFrame:
    """Give each event of a side the latest event of the other side that is not after `last_ts`, or nulls.

    A null `last_ts` is the end of time.
    """
    frames = _named(users, accounts)
    own, others = frames if of == LEFT else reversed(frames)
    keys = {LEFT: F.col(LEFT.key), RIGHT: F.col(RIGHT.own_key)}
    waiting = own.select("*", keys[of].alias("key"), last_ts.alias("at"), F.lit(1).alias("turn"))
    candidates = others.select(
        keys[of.other].alias("key"),
        F.col(of.other.ts).alias("at"),
        F.lit(0).alias("turn"),
        F.struct("*").alias("latest"),
    )
    # One pass over the events of a key in order: its pairs would be as many as the product of both sides.
    order = [F.col("at").asc_nulls_last(), F.col("turn"), *(F.col(f"latest.{name}") for name in of.other.place)]
    passed = Window.partitionBy("key").orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = waiting.unionByName(candidates, allowMissingColumns=True)
    rows = rows.withColumn("latest", F.last("latest", ignorenulls=True).over(passed)).where("turn = 1")
    found = [*of.other.values, *of.other.position.values()]
    rows = rows.withColumns({KEY: F.col("key"), **{name: F.col(f"latest.{name}") for name in found}})
    if within is not None:
        rows = rows.withColumns({name: F.when(is_within(within), F.col(name)) for name in found})
    return rows.select(*JOINED_COLUMNS)
