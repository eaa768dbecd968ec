"""Commits a micro-batch too big for the driver: executors write the Parquet files, the driver commits their names.

The files go through the same fenced commit as small ones, so there is one way into the Delta log and no race between
two kinds of log writer.
"""

from __future__ import annotations

import json

import pyarrow as pa
from deltalake.transaction import AddAction
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from switchyard.joins import ACCOUNT_KEY, USER_KEY
from switchyard.stream import changes
from switchyard.stream.changes import JoinedChanges, Side
from switchyard.stream.forgetting import REASON
from switchyard.stream.forgotten_frames import skip_forgotten_rows
from switchyard.stream.sink import BatchSink, Counts
from switchyard.tables import files
from switchyard.tables.folders import Folder
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.writer import TableWriter

WITHOUT_DICTIONARY = {f"parquet.enable.dictionary#{name}": "false" for name in sorted(files.HARDLY_REPEATED)}
KEYS: dict[Side, list[str]] = {"user": USER_KEY, "account": ACCOUNT_KEY}


def commit_bulk(sink: BatchSink, batch_id: int, rows: DataFrame) -> Counts:
    kept = skip_forgotten_rows(rows, sink.marks(), sink.spec).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        kind = F.when(F.col("reason") == REASON, "forgotten").otherwise(F.col("kind")).alias("kind")
        counts = {row["kind"]: row["count"] for row in kept.groupBy(kind).count().collect()}
        has_rejects = bool(counts.get("reject") or counts.get("forgotten"))
        for name, frame in _source_frames(sink, kept).items():
            is_empty = name == "rejects" and not has_rejects
            sink.commit_files(name, batch_id, [] if is_empty else write_files(sink, name, batch_id, frame))
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


def write_files(sink: BatchSink, name: str, batch_id: int, frame: DataFrame) -> list[AddAction]:
    """Writes a frame below the generation's folder; what an earlier try left there is replaced."""
    writer = sink.writers[name]
    if writer.has_batch(batch_id):
        return []
    folder = _folder_of(writer, batch_id)
    overwrite_folder(writer.folder, folder, frame)
    written = _describe_files(writer, folder)
    return [action for action in written if json.loads(action.stats)["numRecords"]]


def overwrite_folder(folder: Folder, relative: str, frame: DataFrame, by: str = "") -> None:
    """Executors write a frame as Parquet files, in a folder for each value of the column `by` if there is one."""
    write = frame.write.mode("overwrite").options(**WITHOUT_DICTIONARY)
    (write.partitionBy(by) if by else write).parquet(folder.spark_uri(relative))


def _folder_of(writer: TableWriter, batch_id: int) -> str:
    return f"{files.generation_folder(writer.generation)}/bulk-{writer.attempt}-{batch_id}"


def _describe_files(writer: TableWriter, folder: str) -> list[AddAction]:
    return [files.describe_file(writer.folder, writer.generation, path) for path in writer.folder.list_parquet(folder)]


def _commit_joined(sink: BatchSink, batch_id: int, rows: DataFrame) -> None:
    join_type = sink.spec.joinType
    if join_type == "inner":
        pairs = rows.where("kind = 'pair'").select(*changes.ROW_SCHEMA.names)
        sink.commit_files(
            "joined", batch_id, write_files(sink, "joined", batch_id, pairs.sortWithinPartitions(*USER_KEY))
        )
        return
    writer = sink.writers["joined"]
    if writer.has_batch(batch_id):
        return
    side: Side = "account" if join_type == "asof" else "user"
    is_left = join_type == "left"
    folder = _folder_of(writer, batch_id)
    standing = find_standing(rows, side, is_left)
    overwrite_folder(writer.folder, folder, standing, by="standing")
    # Rows without an account are in files of their own: to drop one of them later is to write its file again.
    added = [
        *_describe_files(writer, f"{folder}/standing=paired"),
        *_describe_files(writer, f"{folder}/standing=lonely"),
    ]
    late = f"{folder}/standing=late"
    if is_left:
        revised = _read_rows(writer, late, KEYS[side])
        added += _describe_files(writer, late)
    else:
        revised = _read_rows(writer, late, changes.ROW_SCHEMA.names)
        writer.folder.delete_folder(late)
    sink.commit_joined(batch_id, JoinedChanges(changes.ROW_SCHEMA.empty_table(), revised, side, is_left), added)


def find_standing(rows: DataFrame, side: Side, is_left: bool) -> DataFrame:
    """The rows that a batch makes of its events and pairs, with how they stand to what is there: one shuffle for all.

    - `paired`: an event of this batch with an event of the other side; unless the join is left, the latest one
    - `lonely`: an event of this batch without any
    - `late`: the same as paired for an event of an older batch; its row must be revised

    The standing of a user's rows for natural and for left; `-` is not written:

    | kind    | userOffset | accountOffset | natural | left   |
    |---------|------------|---------------|---------|--------|
    | user    | 7          | -             | -       | -      |
    | pair    | 7          | 1             | -       | paired |
    | pair    | 7          | 2             | paired  | paired |
    | user    | 8          | -             | lonely  | lonely |
    | pair    | 3          | 2             | late    | late   |
    | account | -          | 2             | -       | -      |
    """
    others = [F.col(f"{changes.other(side)}{name}").desc_nulls_first() for name in ("Ts", "Partition", "Offset")]
    # The event itself has nothing of the other side and comes first. Offsets first, as they differ.
    window = Window.partitionBy(*reversed(KEYS[side])).orderBy(*others)
    is_event, has_event = F.col("kind") == side, F.first("kind").over(window) == side
    is_alone, place = F.lead("kind").over(window).isNull(), F.row_number().over(window)
    is_wanted = F.lit(True) if is_left else place == F.when(has_event, 2).otherwise(1)
    standing = (
        F.when(is_event, F.when(is_alone, "lonely"))
        .when(~is_wanted, None)
        .otherwise(F.when(has_event, "paired").otherwise("late"))
    )
    placed = rows.where(F.col("kind").isin(side, "pair")).withColumn("standing", standing)
    return placed.where("standing is not null").select(*changes.ROW_SCHEMA.names, "standing")


def _read_rows(writer: TableWriter, folder: str, names: list[str]) -> pa.Table:
    """Rows by way of files: what one batch revises may be more than Spark's driver lets itself collect."""
    parts = [writer.folder.read(path, names) for path in writer.folder.list_parquet(folder)]
    rows = pa.concat_tables(parts) if parts else changes.ROW_SCHEMA.empty_table()
    columns = [
        rows[field.name] if field.name in names else pa.nulls(len(rows), field.type) for field in changes.ROW_SCHEMA
    ]
    return pa.table(columns, names=changes.ROW_SCHEMA.names).cast(changes.ROW_SCHEMA)
