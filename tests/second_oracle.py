"""The joins as another engine computes them, over the files of the same tables: what the oracle itself is held against.

It shares nothing with Spark but the files, and is several times as quick as an audit where there are millions of rows.
"""

from __future__ import annotations

from typing import Any

import duckdb

from switchyard.joins import JOINED_COLUMNS
from switchyard.layout import Layout
from switchyard.tables import store

Row = tuple[Any, ...]
GENERATION = 1
COLUMNS = ", ".join(JOINED_COLUMNS)
LATEST = "order by {0}Ts desc nulls last, {0}Partition desc, {0}Offset desc"
PAIRS = """
select u.userId, name, email, age, accountType, balance, u.ts as userTs, u.partition as userPartition,
       u."offset" as userOffset, a.ts as accountTs, a.partition as accountPartition, a."offset" as accountOffset
from users u {how} join accounts a on u.userId = a.userId
"""
JOINS = {
    "left": PAIRS.format(how="left"),
    "inner": PAIRS.format(how="inner"),
    "natural": f"""
        select * from ({PAIRS.format(how="left")})
        qualify row_number() over (partition by userPartition, userOffset {LATEST.format("account")}) = 1
    """,
    "asof": f"""
        select * exclude (accountUserId) replace (coalesce(userId, accountUserId) as userId) from (
          {PAIRS.format(how="right").replace("u.userId,", "u.userId, a.userId as accountUserId,")} and u.ts <= a.ts
        ) qualify row_number() over (partition by accountPartition, accountOffset {LATEST.format("user")}) = 1
    """,
}


def join_with_duckdb(layout: Layout, join_type: str) -> list[Row]:
    return _fetch_sorted(_connect(layout, "users", "accounts"), f"select {COLUMNS} from ({JOINS[join_type]})")


def read_joined(layout: Layout) -> list[Row]:
    return _fetch_sorted(_connect(layout, "joined"), f"select {COLUMNS} from joined")


def count_differences(layout: Layout, join_type: str) -> tuple[int, int, int]:
    """Rows that are there, and how many are missing and too many, each as often as it is."""
    tables = _connect(layout, "users", "accounts", "joined")
    tables.execute(f"create temp table expected as select {COLUMNS} from ({JOINS[join_type]})")
    tables.execute(f"create temp table found as select {COLUMNS} from joined")
    missing = "from expected except all from found"
    extra = "from found except all from expected"
    return _count(tables, "from found"), _count(tables, missing), _count(tables, extra)


def count_events(layout: Layout) -> tuple[int, int]:
    """Users and accounts that are stored, and their different positions."""
    tables = _connect(layout, "users", "accounts")
    sides = (
        'from (select topic, "partition", "offset" from users union all '
        'select topic, "partition", "offset" from accounts)'
    )
    return _count(tables, sides), _count(tables, f"select distinct * {sides}")


def _connect(layout: Layout, *names: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    for name in names:
        newest = store.open_table(layout, name).version()
        files = store.list_files(layout, name, newest, GENERATION)
        connection.register(name, connection.read_parquet(files))
    return connection


def _count(tables: duckdb.DuckDBPyConnection, query: str) -> int:
    answer = tables.execute(f"select count(*) from ({query})").fetchone()
    return int(answer[0]) if answer else 0


def _fetch_sorted(tables: duckdb.DuckDBPyConnection, query: str) -> list[Row]:
    return sorted(tables.execute(query).fetchall(), key=str)
