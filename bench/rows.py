"""Rows of `joined` as a stream would have written them, made without one."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from switchyard.layout import Layout
from switchyard.tables import store
from switchyard.tables.schemas import SCHEMAS, TIMESTAMP

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([field for field in SCHEMAS["joined"] if field.name != "generation"])


def draw_rows(
    first: int,
    count: int,
    start: datetime = START,
    every: timedelta = timedelta(milliseconds=1),
    longest_wait: timedelta = timedelta(seconds=10),
) -> pa.Table:
    """Return pairs in the order of their accounts, one `every` so long; the user came up to so long before."""
    random = np.random.default_rng(first)
    number = np.arange(first, first + count)
    earlier = np.maximum(0, number - random.integers(0, longest_wait // every, count))
    person = random.integers(0, 500_000, count)
    given = random.choice(["Ada", "Ken", "Grace", "Alan", "Barbara", "Edsger"], count)
    family = random.choice(["Turing", "Hopper", "Lovelace", "Liskov", "Dijkstra"], count)
    began, step = int(start.timestamp() * 1e6), every // timedelta(microseconds=1)
    columns = {
        "userId": np.char.add("user-", person.astype(str)),
        "name": np.char.add(np.char.add(given, " "), family),
        "email": np.char.add(np.char.add(np.char.lower(given), person.astype(str)), "@example.org"),
        "age": random.integers(18, 90, count),
        "accountType": random.choice(["gold", "silver", "basic"], count),
        "balance": np.round(random.random(count) * 1e5, 2),
        "userTs": pa.array(began + earlier * step, TIMESTAMP),
        "userPartition": pa.array(np.zeros(count, int), pa.int32()),
        "userOffset": earlier,
        "accountTs": pa.array(began + number * step, TIMESTAMP),
        "accountPartition": pa.array(np.zeros(count, int), pa.int32()),
        "accountOffset": number,
    }
    return pa.table(columns).cast(SCHEMA)


def set_active(layout: Layout, generation: int) -> float:
    """Return when that was."""
    row = {
        "generation": generation,
        "usersTopic": "users",
        "accountsTopic": "accounts",
        "joinType": "left",
        "lastApplied": datetime.now(UTC),
        "state": "ACTIVE",
        "epoch": generation,
    }
    store.transact(layout, "status", lambda _: store.Change(rows=[row], mode="overwrite"))
    return time.time()
