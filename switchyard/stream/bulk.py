"""Commits a micro-batch too big for the driver: executors write the Parquet files, the driver commits their names.

The files go through the same fenced commit as small ones, so there is one way into the Delta log and no race between
two kinds of log writer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from switchyard.errors import SwitchyardError
from switchyard.joins import ACCOUNT_KEY, USER_KEY
from switchyard.stream.audit import read_paths
from switchyard.stream.forgotten_frames import skip_forgotten_rows
from switchyard.tables import files, joined_changes
from switchyard.tables.folders import Folder
from switchyard.tables.forgetting import REASON
from switchyard.tables.joined_changes import JoinedChanges, Side, leading_side
from switchyard.tables.pieces import FILE_BYTES, conform
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.sink import BatchSink, Counts
from switchyard.tables.writer import Revision, TableWriter

WITHOUT_DICTIONARY = {f"parquet.enable.dictionary#{name}": "false" for name in sorted(files.HARDLY_REPEATED)}
KEYS: dict[Side, list[str]] = {"user": USER_KEY, "account": ACCOUNT_KEY}
MOST_FILE_ROWS = 250_000
"""To revise a row, or to forget a person, is to write its file again."""
TOO_MANY = "a task makes more rows than a batch may have"
MOST_REVISED_ROWS = 50_000
"""Up to so many older rows, of FILE_BYTES at most, the driver revises itself; more are left to the executors."""


def commit_bulk(sink: BatchSink, batch_id: int, rows: DataFrame, most_rows: int) -> Counts:
    # On disk alone, that is in the system's page cache: of what also tries the memory first, a task holds a hundred
    # megabytes until its end, and reading it tries the memory again.
    few = skip_forgotten_rows(end_at(rows, most_rows), sink.marks(), sink.spec)
    kept = few.persist(StorageLevel.DISK_ONLY)
    try:
        kind = F.when(F.col("reason") == REASON, "forgotten").otherwise(F.col("kind")).alias("kind")
        counts = count_kinds(kept.groupBy(kind).count(), batch_id, most_rows)
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
        pairs=counts.get("pair", 0),
    )


def end_at(rows: DataFrame, most_rows: int) -> DataFrame:
    """The same rows, but a task that has made more than `most_rows` of them fails: a join may make them without end."""
    number_in_task = F.monotonically_increasing_id().bitwiseAND(F.lit(2**33 - 1))
    return rows.where(F.when(number_in_task < most_rows, F.lit(True)).otherwise(F.raise_error(F.lit(TOO_MANY))))


def count_kinds(counted: DataFrame, batch_id: int, most_rows: int) -> dict[str, int]:
    """The rows of each kind. A join that explodes is told before it has filled the disk, and nothing is written."""
    try:
        counts = {row["kind"]: row["count"] for row in counted.collect()}
        if sum(counts.values()) <= most_rows:
            return counts
    except Exception as error:
        if TOO_MANY not in str(error):
            raise
    raise SwitchyardError(
        f"batch {batch_id} makes more than {most_rows} rows, because few userIds have very many events on both sides; "
        "swap to topics without them, set SWITCHYARD_STATE_RETENTION, or allow more with SWITCHYARD_MOST_BATCH_ROWS "
        "if the disk has room"
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
    write = frame.write.mode("overwrite").options(**WITHOUT_DICTIONARY, maxRecordsPerFile=MOST_FILE_ROWS)
    (write.partitionBy(by) if by else write).parquet(folder.spark_uri(relative))


def _folder_of(writer: TableWriter, batch_id: int) -> str:
    return f"{files.generation_folder(writer.generation)}/bulk-{writer.attempt}-{batch_id}"


def _describe_files(writer: TableWriter, folder: str) -> list[AddAction]:
    return [files.describe_file(writer.folder, writer.generation, path) for path in writer.folder.list_parquet(folder)]


def _commit_joined(sink: BatchSink, batch_id: int, rows: DataFrame) -> None:
    join_type = sink.spec.joinType
    if join_type == "inner":
        pairs = rows.where("kind = 'pair'").select(*joined_changes.ROW_SCHEMA.names)
        sink.commit_files(
            "joined", batch_id, write_files(sink, "joined", batch_id, pairs.sortWithinPartitions(*USER_KEY))
        )
        return
    writer = sink.writers["joined"]
    if writer.has_batch(batch_id):
        return
    side, is_left, folder = leading_side(join_type), join_type == "left", _folder_of(writer, batch_id)
    overwrite_folder(writer.folder, folder, classify_rows(rows, side, is_left), by="match")
    # Rows without an account are in files of their own: to drop one of them later is to write its file again.
    added = [
        *_describe_files(writer, f"{folder}/match=paired"),
        *_describe_files(writer, f"{folder}/match=unmatched"),
    ]
    late = _describe_files(writer, f"{folder}/match=late")
    added += late if is_left else []
    revised = _read_if_it_fits(writer, late, KEYS[side] if is_left else joined_changes.ROW_SCHEMA.names)
    if revised is not None:
        sink.commit_joined(
            batch_id, JoinedChanges(joined_changes.ROW_SCHEMA.empty_table(), revised, side, is_left), added
        )
    else:
        revision = BulkRevision(rows.sparkSession, writer, f"{folder}/revised", late, side, is_left)
        writer.commit(batch_id, lambda table: revision.make(table, added))
    if not is_left:
        writer.folder.delete_folder(f"{folder}/match=late")


def classify_rows(rows: DataFrame, side: Side, is_left: bool) -> DataFrame:
    """The rows that a batch makes of its events and pairs, and how each matches the other side: one shuffle for all.

    - `paired`: an event of this batch with an event of the other side; unless the join is left, the latest one
    - `unmatched`: an event of this batch without any
    - `late`: the same as paired for an event of an older batch; its row must be revised

    What a user's rows become for natural and for left; `-` is not written:

    | kind    | userOffset | accountOffset | natural   | left      |
    |---------|------------|---------------|-----------|-----------|
    | user    | 7          | -             | -         | -         |
    | pair    | 7          | 1             | -         | paired    |
    | pair    | 7          | 2             | paired    | paired    |
    | user    | 8          | -             | unmatched | unmatched |
    | pair    | 3          | 2             | late      | late      |
    | account | -          | 2             | -         | -         |
    """
    others = [F.col(f"{joined_changes.other(side)}{name}").desc_nulls_first() for name in ("Ts", "Partition", "Offset")]
    # The event itself has nothing of the other side and comes first. Offsets first, as they differ.
    window = Window.partitionBy(*reversed(KEYS[side])).orderBy(*others)
    is_event, has_event = F.col("kind") == side, F.first("kind").over(window) == side
    is_alone, place = F.lead("kind").over(window).isNull(), F.row_number().over(window)
    is_wanted = F.lit(True) if is_left else place == F.when(has_event, 2).otherwise(1)
    match = (
        F.when(is_event, F.when(is_alone, "unmatched"))
        .when(~is_wanted, None)
        .otherwise(F.when(has_event, "paired").otherwise("late"))
    )
    placed = rows.where(F.col("kind").isin(side, "pair")).withColumn("match", match)
    return placed.where("match is not null").select(*joined_changes.ROW_SCHEMA.names, "match")


def _read_if_it_fits(writer: TableWriter, written: Sequence[AddAction], names: list[str]) -> pa.Table | None:
    """Some columns of the rows of some files; None when they are more than the driver may take."""
    if sum(map(count_rows, written)) > MOST_REVISED_ROWS:
        return None
    parts, size = [joined_changes.ROW_SCHEMA.empty_table()], 0
    for rows in chain.from_iterable(writer.scan(action.path, names) for action in written):
        parts.append(conform(rows, joined_changes.ROW_SCHEMA))
        size += rows.nbytes
        if size > FILE_BYTES:
            return None
    return pa.concat_tables(parts)


def count_rows(action: AddAction) -> int:
    return int(json.loads(action.stats)["numRecords"])


@dataclass(frozen=True)
class BulkRevision:
    """Revises more rows of `joined` than fit the driver: the executors write the files again that hold them.

    `late` are the files of the revising rows, and `folder` is where the revised files go.
    """

    spark: SparkSession
    writer: TableWriter
    folder: str
    late: Sequence[AddAction]
    side: Side
    is_left: bool

    def make(self, table: DeltaTable, added: Sequence[AddAction]) -> Revision:
        """Asked again when a compaction has replaced one of the files meanwhile: nothing of the last try is kept."""
        live = files.live_files(table, self.writer.generation, self.side)
        candidates = [file for file in live if file.rows_without_account or not self.is_left]
        touched = self._find_touched(candidates)
        if not touched:
            return Revision(list(added))
        self._write(self._revise(self._read(touched)).where("not is_dropped"))
        written = [
            action
            for match in ("paired", "unmatched")
            for action in _describe_files(self.writer, f"{self.folder}/match={match}")
        ]
        removed = [files.remove_file(self.writer.generation, file.path, file.size) for file in touched]
        return Revision([*added, *written], removed)

    def _find_touched(self, candidates: Sequence[files.FileRange]) -> list[files.FileRange]:
        """The files with a row that changes. Their names reach the driver, no rows."""
        if not candidates:
            return []
        rows = self._revise(self._read(candidates)).where("is_changed").select("file").distinct().collect()
        changed = {unquote(row["file"]) for row in rows}
        return [file for file in candidates if any(path.endswith(f"/{file.path}") for path in changed)]

    def _read(self, chosen: Sequence[files.FileRange]) -> DataFrame:
        rows = read_paths(self.spark, "joined", [self.writer.folder.spark_uri(file.path) for file in chosen])
        return rows.select("*", F.col("_metadata.file_path").alias("file"))

    def _revise(self, existing: DataFrame) -> DataFrame:
        """Each row as it is after the batch, with `is_changed`, and `is_dropped` where it is there no more."""
        names, key = joined_changes.ROW_SCHEMA.names, KEYS[self.side]
        late = read_paths(self.spark, "joined", [self.writer.folder.spark_uri(action.path) for action in self.late])
        if self.is_left:
            matched = existing.join(late.select(*key).distinct().withColumn("late", F.lit(True)), key, "left")
            is_changed = F.coalesce("late", F.lit(False)) & F.col("accountOffset").isNull()
            return matched.select(*names, "file", is_changed.alias("is_changed"), is_changed.alias("is_dropped"))
        newer = late.select(*key, F.struct(*names).alias("late"))
        order = [f"{joined_changes.other(self.side)}{name}" for name in ("Ts", "Partition", "Offset")]
        is_later = F.col(order[2]).isNull() | (F.struct(*[F.col(f"late.{name}") for name in order]) > F.struct(*order))
        is_changed = F.coalesce(F.col("late").isNotNull() & is_later, F.lit(False))
        kept = [F.when(is_changed, F.col(f"late.{name}")).otherwise(F.col(name)).alias(name) for name in names]
        matched = existing.join(newer, key, "left")
        return matched.select(*kept, "file", is_changed.alias("is_changed"), F.lit(False).alias("is_dropped"))

    def _write(self, rows: DataFrame) -> None:
        """Sorted by the key that a batch finds rows by, and rows without an account in files of their own."""
        names, key = joined_changes.ROW_SCHEMA.names, KEYS[self.side]
        match = F.when(F.col("accountOffset").isNull(), "unmatched").otherwise("paired").alias("match")
        placed = rows.select(*names, match).sortWithinPartitions("match", *key)
        overwrite_folder(self.writer.folder, self.folder, placed, by="match")
