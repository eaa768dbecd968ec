"""The columns of every table, once. The names and their order are the contract."""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")

_POSITION = [("ts", TIMESTAMP), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]

USERS = pa.schema(
    [
        ("generation", pa.int64()),
        ("userId", pa.string()),
        ("name", pa.string()),
        ("email", pa.string()),
        ("age", pa.int64()),
        *_POSITION,
    ]
)
ACCOUNTS = pa.schema(
    [
        ("generation", pa.int64()),
        ("userId", pa.string()),
        ("accountType", pa.string()),
        ("balance", pa.float64()),
        *_POSITION,
    ]
)
JOINED = pa.schema(
    [
        ("generation", pa.int64()),
        ("userId", pa.string()),
        ("name", pa.string()),
        ("email", pa.string()),
        ("age", pa.int64()),
        ("accountType", pa.string()),
        ("balance", pa.float64()),
        ("userTs", TIMESTAMP),
        ("userPartition", pa.int32()),
        ("userOffset", pa.int64()),
        ("accountTs", TIMESTAMP),
        ("accountPartition", pa.int32()),
        ("accountOffset", pa.int64()),
    ]
)
REJECTS = pa.schema(
    [
        ("generation", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ts", TIMESTAMP),
        ("value", pa.string()),
        ("reason", pa.string()),
    ]
)
STATUS = pa.schema(
    [
        ("generation", pa.int64()),
        ("usersTopic", pa.string()),
        ("accountsTopic", pa.string()),
        ("joinType", pa.string()),
        ("lastApplied", TIMESTAMP),
        ("state", pa.string()),
        ("epoch", pa.int64()),
    ]
)
SWAP_HISTORY = pa.schema(
    [
        ("swapId", pa.string()),
        ("generation", pa.int64()),
        ("event", pa.string()),
        ("usersTopic", pa.string()),
        ("accountsTopic", pa.string()),
        ("joinType", pa.string()),
        ("start", pa.string()),
        ("requestedBy", pa.string()),
        ("at", TIMESTAMP),
        ("detail", pa.string()),
        ("deadline", TIMESTAMP),
    ]
)
LOGS = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("level", pa.string()),
        ("msg", pa.string()),
        ("generation", pa.int64()),
        ("swapId", pa.string()),
    ]
)
CONTROL_RAW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ts", TIMESTAMP),
        ("value", pa.string()),
    ]
)
PROGRESS = pa.schema(
    [
        ("generation", pa.int64()),
        ("attempt", pa.int64()),
        ("batchId", pa.int64()),
        ("at", TIMESTAMP),
        ("inputRows", pa.int64()),
        ("rowsPerSecond", pa.float64()),
        ("batchMs", pa.int64()),
        ("lag", pa.int64()),
        ("usersVersion", pa.int64()),
        ("accountsVersion", pa.int64()),
        ("joinedVersion", pa.int64()),
        ("rejectsVersion", pa.int64()),
        ("rejectedRows", pa.int64()),
        ("tombstones", pa.int64()),
        ("startOffsets", pa.string()),
        ("endOffsets", pa.string()),
        ("rowsPerEvent", pa.float64()),
        ("recentRowsPerEvent", pa.float64()),
        ("movedAt", TIMESTAMP),
        ("executors", pa.int64()),
    ]
)
AUDITS = pa.schema(
    [
        ("at", TIMESTAMP),
        ("generation", pa.int64()),
        ("rowsCompared", pa.int64()),
        ("missing", pa.int64()),
        ("extra", pa.int64()),
        ("usersVersion", pa.int64()),
        ("accountsVersion", pa.int64()),
        ("joinedVersion", pa.int64()),
        ("rejectsVersion", pa.int64()),
        ("unaccounted", pa.int64()),
        ("detail", pa.string()),
    ]
)
INCIDENTS = pa.schema(
    [
        ("at", TIMESTAMP),
        ("check", pa.string()),
        ("stage", pa.string()),
        ("level", pa.string()),
        ("detail", pa.string()),
    ]
)
FORGOTTEN = pa.schema(
    [
        ("number", pa.int64()),
        ("at", TIMESTAMP),
        ("userHash", pa.string()),
        ("salt", pa.string()),
        ("upTo", pa.string()),
        ("found", pa.string()),
        ("requestedBy", pa.string()),
    ]
)

SCHEMAS: dict[str, pa.Schema] = {
    "users": USERS,
    "accounts": ACCOUNTS,
    "joined": JOINED,
    "rejects": REJECTS,
    "status": STATUS,
    "swap_history": SWAP_HISTORY,
    "logs": LOGS,
    "control_raw": CONTROL_RAW,
    "progress": PROGRESS,
    "audits": AUDITS,
    "incidents": INCIDENTS,
    "forgotten": FORGOTTEN,
}
PARTITIONED = frozenset({"users", "accounts", "joined", "rejects", "progress"})
