"""Commits a micro-batch too big for the driver: executors write the Parquet files, the driver commits their names.

The files go through the same fenced commit as small ones, so there is one way into the Delta log and no race between
two kinds of log writer.
"""

from __future__ import annotations

import json

import pyarrow as pa
from deltalake.transaction import AddAction
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from switchyard.joins import ACCOUNT_KEY, USER_KEY
from switchyard.stream import changes
from switchyard.stream.changes import JoinedChanges, Side
from switchyard.stream.forgetting import REASON
from switchyard.stream.forgotten_frames import skip_forgotten_rows
from switchyard.stream.query import BATCH_COLUMNS
from switchyard.stream.sink import BatchSink, Counts
from switchyard.tables import files
from switchyard.tables.schemas import SCHEMAS

ROW_TYPES = {name: kind for name, kind in BATCH_COLUMNS.items() if name in changes.ROW_SCHEMA.names}
KEYS: dict[Side, list[str]] = {"user": USER_KEY, "account": ACCOUNT_KEY}


def commit_bulk(sink: BatchSink, batch_id: int, rows: DataFrame) -> Counts:
    kept = skip_forgotten_rows(rows, sink.marks(), sink.spec).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        kind = F.when(F.col("reason") == REASON, "forgotten").otherwise(F.col("kind")).alias("kind")
        counts = {row["kind"]: row["count"] for row in kept.groupBy(kind).count().collect()}
        for name, frame in _source_frames(sink, kept).items():
            sink.commit_files(name, batch_id, write_files(sink, name, batch_id, frame))
        _commit_joined(sink, batch_id, kept)
    finally:
        kept.unpersist()
    return Counts(
        input_rows=sum(counts.values()) - counts.get("pair", 0),
        rejected_rows=counts.get("reject", 0),
        tombstones=counts.get("tombstone", 0),
    )


def _source_frames(sink: BatchSink, rows: DataFrame) -> dict[str, DataFrame]:
    is_user = F.col("userOffset").isNotNull()
    users_topic, accounts_topic = F.lit(sink.spec.usersTopic), F.lit(sink.spec.accountsTopic)
    rejects = rows.where("kind = 'reject'").select(
        F.when(is_user, users_topic).otherwise(accounts_topic).alias("topic"),
        *[F.coalesce(f"user{name}", f"account{name}").alias(name.lower()) for name in ("Partition", "Offset", "Ts")],
        "value",
        "reason",
    )
    return {
        "users": _source_frame(rows, "user", users_topic),
        "accounts": _source_frame(rows, "account", accounts_topic),
        "rejects": rejects,
    }


def _source_frame(rows: DataFrame, side: Side, topic: Column) -> DataFrame:
    renamed = {f"{side}Ts": "ts", f"{side}Partition": "partition", f"{side}Offset": "offset"}
    events = rows.where(F.col("kind") == side).withColumn("topic", topic)
    names = [name for name in SCHEMAS[f"{side}s"].names if name != "generation"]
    return events.withColumnsRenamed(renamed).select(*names)


def write_files(sink: BatchSink, name: str, batch_id: int, frame: DataFrame, part: str = "bulk") -> list[AddAction]:
    """Writes a frame below the generation's folder; what an earlier try left there is replaced."""
    writer = sink.writers[name]
    if writer.has_batch(batch_id):
        return []
    folder = f"{files.generation_folder(writer.generation)}/{part}-{writer.attempt}-{batch_id}"
    frame.write.mode("overwrite").parquet(writer.folder.spark_uri(folder))
    written = [
        files.describe_file(writer.folder, writer.generation, path) for path in writer.folder.list_parquet(folder)
    ]
    return [action for action in written if json.loads(action.stats)["numRecords"]]


def _commit_joined(sink: BatchSink, batch_id: int, rows: DataFrame) -> None:
    names = changes.ROW_SCHEMA.names
    pairs = rows.where("kind = 'pair'").select(*names)
    join_type = sink.spec.joinType
    side: Side = "account" if join_type == "asof" else "user"
    events = rows.where(F.col("kind") == side).select(*names)
    if join_type in ("natural", "asof"):
        pairs = _keep_latest(pairs, side)
    # A pair of two events of the first batch revises nothing, and no other batch has been before it.
    has_older = batch_id > 0
    new, old = pairs, None
    if join_type != "inner" and has_older:
        old = pairs.join(events.select(*KEYS[side]), KEYS[side], "left_anti").select(*names)
    if join_type in ("natural", "asof") and has_older:
        new = pairs.join(events.select(*KEYS[side]), KEYS[side], "left_semi").select(*names)
    added = write_files(sink, "joined", batch_id, new.sortWithinPartitions(*KEYS[side]))
    if join_type != "inner":
        # In files of their own: to drop one of these rows later is to write its file again.
        lonely = _lonely(events, pairs, side).sortWithinPartitions(*KEYS[side])
        added += write_files(sink, "joined", batch_id, lonely, "bulk-lonely")
    revised = changes.ROW_SCHEMA.empty_table()
    if old is not None:
        revised = _bring_to_driver(sink, batch_id, _only_keys(old, side) if join_type == "left" else old)
    empty = changes.ROW_SCHEMA.empty_table()
    sink.commit_joined(batch_id, JoinedChanges(empty, revised, side, join_type == "left"), added)


def _bring_to_driver(sink: BatchSink, batch_id: int, rows: DataFrame) -> pa.Table:
    """Rows by way of files: what one batch revises may be more than Spark's driver lets itself collect."""
    writer = sink.writers["joined"]
    folder = f"_revised/{writer.generation}-{writer.attempt}-{batch_id}"
    rows.write.mode("overwrite").parquet(writer.folder.spark_uri(folder))
    try:
        tables = [writer.folder.read(path).cast(changes.ROW_SCHEMA) for path in writer.folder.list_parquet(folder)]
    finally:
        writer.folder.delete_folder(folder)
    return pa.concat_tables([changes.ROW_SCHEMA.empty_table(), *tables])


def _only_keys(rows: DataFrame, side: Side) -> DataFrame:
    """All that dropping a null row needs."""
    columns = [name if name in KEYS[side] else F.lit(None).cast(kind).alias(name) for name, kind in ROW_TYPES.items()]
    return rows.dropDuplicates(KEYS[side]).select(*columns)


def _lonely(events: DataFrame, pairs: DataFrame, side: Side) -> DataFrame:
    return events.join(pairs.select(*KEYS[side]), KEYS[side], "left_anti").select(*changes.ROW_SCHEMA.names)


def _keep_latest(pairs: DataFrame, side: Side) -> DataFrame:
    late = changes.other(side)
    order = F.struct(*[F.col(f"{late}{name}") for name in ("Ts", "Partition", "Offset")])
    row = F.struct(*[F.col(name) for name in changes.ROW_SCHEMA.names])
    return pairs.groupBy(*KEYS[side]).agg(F.max_by(row, order).alias("row")).select("row.*")
