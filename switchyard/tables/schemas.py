"""Declare the columns of every table. Names and order are contract; those of records come from `records.py`."""

from __future__ import annotations

import pyarrow as pa

from switchyard.layout import BIG_TABLES
from switchyard.records import JOINED, POSITION, SIDES, Columns, Side

TIMESTAMP = pa.timestamp("us", tz="UTC")

_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "timestamp": TIMESTAMP}
_GENERATION = ("generation", pa.int64())


def to_arrow(columns: Columns) -> list[tuple[str, pa.DataType]]:
    return [(name, _TYPES[kind]) for name, kind in columns.items()]


def _parse(columns: str) -> pa.Schema:
    """Read columns as Spark's DDL writes them: `name type, name type`."""
    return pa.schema(to_arrow(dict(column.split() for column in columns.split(", "))))


def _events(side: Side) -> pa.Schema:
    position = to_arrow(POSITION)
    return pa.schema([_GENERATION, *to_arrow(side.columns), position[0], ("topic", pa.string()), *position[1:]])


_COLUMNS = {
    "rejects": "generation long, topic string, partition int, offset long, ts timestamp, value string, reason string",
    "status": (
        "generation long, usersTopic string, accountsTopic string, joinType string, lastApplied timestamp, "
        "state string, epoch long"
    ),
    "swap_history": (
        "swapId string, generation long, event string, usersTopic string, accountsTopic string, joinType string, "
        "start string, requestedBy string, at timestamp, detail string, deadline timestamp"
    ),
    "logs": "ts timestamp, level string, msg string, generation long, swapId string",
    "control_raw": "topic string, partition int, offset long, ts timestamp, value string",
    "progress": (
        "generation long, attempt long, batchId long, at timestamp, inputRows long, rowsPerSecond double, "
        "batchMs long, lag long, usersVersion long, accountsVersion long, joinedVersion long, rejectsVersion long, "
        "rejectedRows long, tombstones long, startOffsets string, endOffsets string, rowsPerEvent double, "
        "recentRowsPerEvent double, movedAt timestamp, executors long"
    ),
    "audits": (
        "at timestamp, generation long, rowsCompared long, missing long, extra long, usersVersion long, "
        "accountsVersion long, joinedVersion long, rejectsVersion long, unaccounted long, detail string"
    ),
    "incidents": "at timestamp, check string, stage string, level string, detail string",
    "forgotten": (
        "number long, at timestamp, userHash string, salt string, upTo string, found string, requestedBy string"
    ),
}

SCHEMAS: dict[str, pa.Schema] = {
    **{side.plural: _events(side) for side in SIDES},
    "joined": pa.schema([_GENERATION, *to_arrow(JOINED)]),
    **{name: _parse(columns) for name, columns in _COLUMNS.items()},
}
PROGRESS = SCHEMAS["progress"]
PARTITIONED = frozenset({*BIG_TABLES, "progress"})
FILE_SCHEMAS = {name: schema.remove(0) if name in PARTITIONED else schema for name, schema in SCHEMAS.items()}
"""The columns of a data file: the generation is the name of its folder."""
