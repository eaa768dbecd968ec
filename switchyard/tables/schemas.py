"""The columns of every table, once. The names and their order are the contract.

Those of records are derived from their declaration.
"""

from __future__ import annotations

import pyarrow as pa

from switchyard.layout import BIG_TABLES
from switchyard.records import JOINED, POSITION, SIDES, Columns, Side

TIMESTAMP = pa.timestamp("us", tz="UTC")

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": TIMESTAMP,
}
_GENERATION = ("generation", pa.int64())


def to_arrow(columns: Columns) -> list[tuple[str, pa.DataType]]:
    return [(name, _TYPES[kind]) for name, kind in columns.items()]


def _events(side: Side) -> pa.Schema:
    position = to_arrow(POSITION)
    return pa.schema([_GENERATION, *to_arrow(side.columns), position[0], ("topic", pa.string()), *position[1:]])


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
    **{side.plural: _events(side) for side in SIDES},
    "joined": pa.schema([_GENERATION, *to_arrow(JOINED)]),
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
PARTITIONED = frozenset({*BIG_TABLES, "progress"})
FILE_SCHEMAS = {name: schema.remove(0) if name in PARTITIONED else schema for name, schema in SCHEMAS.items()}
"""The columns of a data file: the generation is the name of its folder."""
