"""Commit a micro-batch that is too big for the driver: executors write the Parquet files, the driver commits them.

The commit is the same fenced one as of small batches, so only one kind of writer touches the Delta log.
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
from switchyard.records import JOIN_RULES, LEFT, POSITION, RIGHT, SIDES, JoinRule, Side
from switchyard.stream.audit import read_paths
from switchyard.stream.forgotten_frames import skip_forgotten_rows
from switchyard.stream.small_batch import number_in_task
from switchyard.tables import files
from switchyard.tables.folders import Folder
from switchyard.tables.forgetting import REASON
from switchyard.tables.joined_changes import ROW_SCHEMA, JoinedChanges
from switchyard.tables.joined_writer import commit_joined
from switchyard.tables.pieces import FILE_BYTES, conform
from switchyard.tables.schemas import FILE_SCHEMAS
from switchyard.tables.sink import BatchSink, Counts
from switchyard.tables.writer import Revision, TableWriter

WITHOUT_DICTIONARY = {f"parquet.enable.dictionary#{name}": "false" for name in sorted(files.HARDLY_REPEATED)}
MOST_FILE_ROWS = 250_000
"""Bounded, because to revise a row or to carry out a mark is to write the whole file again."""
TOO_MANY = "a task makes more rows than a batch may have"
MOST_REVISED_ROWS = 50_000
"""Up to so many older rows, of FILE_BYTES at most, the driver revises itself; more are left to the executors."""


def commit_bulk(sink: BatchSink, batch_id: int, rows: DataFrame, most_rows: int) -> Counts:
    # On disk alone, which mostly means in the page cache: with a storage level that tries memory first, each task holds
    # a hundred megabytes until its end.
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
    """Let each task fail that makes more than `most_rows` rows: those of a join may be more than the disk holds."""
    is_allowed = number_in_task() < most_rows
    return rows.where(F.when(is_allowed, F.lit(True)).otherwise(F.raise_error(F.lit(TOO_MANY))))


def count_kinds(counted: DataFrame, batch_id: int, most_rows: int) -> dict[str, int]:
    """Count the rows of each kind. Raise for a join that explodes, before it has filled the disk."""
    try:
        counts = {row["kind"]: row["count"] for row in counted.collect()}
        if sum(counts.values()) <= most_rows:
            return counts
    except Exception as error:
        if TOO_MANY not in str(error):
            raise
    raise SwitchyardError(say_too_many(f"batch {batch_id}", most_rows, "swap to topics without them"))


def say_too_many(what: str, most_rows: int, advice: str) -> str:
    return (
        f"{what} makes more than {most_rows} rows, because few userIds have very many events on both sides; "
        f"{advice}, set SWITCHYARD_STATE_RETENTION, or allow more with SWITCHYARD_MOST_BATCH_ROWS if the disk has room"
    )


def _source_frames(sink: BatchSink, rows: DataFrame) -> dict[str, DataFrame]:
    topics = {side: F.lit(sink.spec.topic_of(side)) for side in SIDES}
    given = {
        "topic": F.when(F.col(LEFT.offset).isNotNull(), topics[LEFT]).otherwise(topics[RIGHT]),
        **{name: F.coalesce(*(side.position[name] for side in SIDES)) for name in POSITION},
    }
    rejects = rows.where("kind = 'reject'").withColumns(given).select(*FILE_SCHEMAS["rejects"].names)
    return {side.plural: _source_frame(rows, side, topics[side]) for side in SIDES} | {"rejects": rejects}


def _source_frame(rows: DataFrame, side: Side, topic: Column) -> DataFrame:
    events = rows.where(F.col("kind") == side.singular).withColumn("topic", topic)
    own = {name: column for column, name in side.position.items()}
    return events.withColumnsRenamed(own).select(*FILE_SCHEMAS[side.plural].names)


def write_files(sink: BatchSink, name: str, batch_id: int, frame: DataFrame) -> list[AddAction]:
    """Write a frame below the generation's folder; what an earlier try left there is replaced."""
    writer = sink.writers[name]
    if writer.has_batch(batch_id):
        return []
    folder = _folder_of(writer, batch_id)
    overwrite_folder(writer.folder, folder, frame)
    return [action for action in _describe_files(writer, folder) if count_rows(action)]


def overwrite_folder(folder: Folder, relative: str, frame: DataFrame, by: str = "") -> None:
    """Let the executors write a frame as Parquet files, in a folder for each value of the column `by` if given."""
    write = frame.write.mode("overwrite").options(**WITHOUT_DICTIONARY, maxRecordsPerFile=MOST_FILE_ROWS)
    (write.partitionBy(by) if by else write).parquet(folder.spark_uri(relative))


def _folder_of(writer: TableWriter, batch_id: int) -> str:
    return f"{files.generation_folder(writer.generation)}/bulk-{writer.attempt}-{batch_id}"


def _describe_files(writer: TableWriter, folder: str) -> list[AddAction]:
    return [files.describe_file(writer.folder, writer.generation, path) for path in writer.folder.list_parquet(folder)]


def _commit_joined(sink: BatchSink, batch_id: int, rows: DataFrame) -> None:
    rule = JOIN_RULES[sink.spec.joinType]
    if not rule.keeps_unmatched:
        pairs = rows.where("kind = 'pair'").select(*ROW_SCHEMA.names).sortWithinPartitions(*rule.leading.place)
        sink.commit_files("joined", batch_id, write_files(sink, "joined", batch_id, pairs))
        return
    writer = sink.writers["joined"]
    if writer.has_batch(batch_id):
        return
    folder = _folder_of(writer, batch_id)
    overwrite_folder(writer.folder, folder, classify_rows(rows, rule), by="match")
    # Unmatched rows are in separate files: to drop one of them later is to write its file again.
    added = _describe_matches(writer, folder, "paired", "unmatched")
    late = _describe_matches(writer, folder, "late")
    added += [] if rule.takes_latest else late
    revised = _read_if_it_fits(writer, late, ROW_SCHEMA.names if rule.takes_latest else rule.leading.place)
    if revised is not None:
        commit_joined(writer, batch_id, JoinedChanges(ROW_SCHEMA.empty_table(), revised, rule), added)
    else:
        revision = BulkRevision(rows.sparkSession, writer, f"{folder}/revised", late, rule)
        writer.commit(batch_id, lambda table: revision.make(table, added))
    if rule.takes_latest:
        writer.folder.delete_folder(f"{folder}/match=late")


def _describe_matches(writer: TableWriter, folder: str, *matches: str) -> list[AddAction]:
    return [action for match in matches for action in _describe_files(writer, f"{folder}/match={match}")]


def classify_rows(rows: DataFrame, rule: JoinRule) -> DataFrame:
    """Return the rows of `joined` for a batch of events and pairs, with how each was matched, by one shuffle.

    - `paired`: an event of this batch with an event of the other side; if the join takes the latest, with that one
    - `unmatched`: an event of this batch without any
    - `late`: the same as paired for an event of an older batch; its row must be revised

    The match of a user's rows for natural and for left; `-` is not written:

    | kind    | userOffset | accountOffset | natural   | left      |
    |---------|------------|---------------|-----------|-----------|
    | user    | 7          | -             | -         | -         |
    | pair    | 7          | 1             | -         | paired    |
    | pair    | 7          | 2             | paired    | paired    |
    | user    | 8          | -             | unmatched | unmatched |
    | pair    | 3          | 2             | late      | late      |
    | account | -          | 2             | -         | -         |
    """
    side = rule.leading
    others = [F.col(name).desc_nulls_first() for name in side.other.position.values()]
    # The event itself has nothing of the other side and comes first. Offsets first, as they differ.
    window = Window.partitionBy(*reversed(side.place)).orderBy(*others)
    is_event, has_event = F.col("kind") == side.singular, F.first("kind").over(window) == side.singular
    is_alone, number = F.lead("kind").over(window).isNull(), F.row_number().over(window)
    is_wanted = number == F.when(has_event, 2).otherwise(1) if rule.takes_latest else F.lit(True)
    match = (
        F.when(is_event, F.when(is_alone, "unmatched"))
        .when(~is_wanted, None)
        .otherwise(F.when(has_event, "paired").otherwise("late"))
    )
    matched = rows.where(F.col("kind").isin(side.singular, "pair")).withColumn("match", match)
    return matched.where("match is not null").select(*ROW_SCHEMA.names, "match")


def _read_if_it_fits(writer: TableWriter, written: Sequence[AddAction], names: list[str]) -> pa.Table | None:
    """Return some columns of the rows of some files; None when they are more than the driver may take."""
    if sum(map(count_rows, written)) > MOST_REVISED_ROWS:
        return None
    parts, size = [ROW_SCHEMA.empty_table()], 0
    for rows in chain.from_iterable(writer.scan(action.path, names) for action in written):
        parts.append(conform(rows, ROW_SCHEMA))
        size += rows.nbytes
        if size > FILE_BYTES:
            return None
    return pa.concat_tables(parts)


def count_rows(action: AddAction) -> int:
    return int(json.loads(action.stats)["numRecords"])


@dataclass(frozen=True)
class BulkRevision:
    """A revision of more rows of `joined` than fit the driver: the executors write the files again that hold them.

    `late` are the files of the revising rows, and `folder` is where the revised files go.
    """

    spark: SparkSession
    writer: TableWriter
    folder: str
    late: Sequence[AddAction]
    rule: JoinRule

    def make(self, table: DeltaTable, added: Sequence[AddAction]) -> Revision:
        """Compute the revision; called again, from scratch, if compaction has replaced a file meanwhile."""
        live = files.list_files(table, self.writer.generation, self.rule.leading.place)
        candidates = [file for file in live if file.unmatched_rows or self.rule.takes_latest]
        touched = self._find_touched(candidates)
        if not touched:
            return Revision(list(added))
        self._write(self._revise(self._read(touched)).where("not is_dropped"))
        written = _describe_matches(self.writer, self.folder, "paired", "unmatched")
        removed = [files.remove_file(self.writer.generation, file.path, file.size) for file in touched]
        return Revision([*added, *written], removed)

    def _find_touched(self, candidates: Sequence[files.LiveFile]) -> list[files.LiveFile]:
        """Find the files with a row that changes. Only their names reach the driver, no rows."""
        if not candidates:
            return []
        rows = self._revise(self._read(candidates)).where("is_changed").select("file").distinct().collect()
        changed = {unquote(row["file"]) for row in rows}
        return [file for file in candidates if any(path.endswith(f"/{file.path}") for path in changed)]

    def _read(self, chosen: Sequence[files.LiveFile]) -> DataFrame:
        rows = read_paths(self.spark, "joined", [self.writer.folder.spark_uri(file.path) for file in chosen])
        return rows.select("*", F.col("_metadata.file_path").alias("file"))

    def _revise(self, existing: DataFrame) -> DataFrame:
        """Return each row as it is after the batch, with `is_changed`, and `is_dropped` for one to remove."""
        names, side = ROW_SCHEMA.names, self.rule.leading
        late = read_paths(self.spark, "joined", [self.writer.folder.spark_uri(action.path) for action in self.late])
        if not self.rule.takes_latest:
            paired = late.select(*side.place).distinct().withColumn("late", F.lit(True))
            matched = existing.join(paired, side.place, "left")
            is_changed = F.coalesce("late", F.lit(False)) & F.col(side.other.offset).isNull()
            return matched.select(*names, "file", is_changed.alias("is_changed"), is_changed.alias("is_dropped"))
        newer = late.select(*side.place, F.struct(*names).alias("late"))
        order = side.other.position.values()
        is_greater = F.struct(*[F.col(f"late.{name}") for name in order]) > F.struct(*order)
        is_later = F.col(side.other.offset).isNull() | is_greater
        is_changed = F.coalesce(F.col("late").isNotNull() & is_later, F.lit(False))
        kept = [F.when(is_changed, F.col(f"late.{name}")).otherwise(F.col(name)).alias(name) for name in names]
        matched = existing.join(newer, side.place, "left")
        return matched.select(*kept, "file", is_changed.alias("is_changed"), F.lit(False).alias("is_dropped"))

    def _write(self, rows: DataFrame) -> None:
        """Write rows sorted by the place that a batch finds them by, unmatched ones in separate files."""
        match = F.when(F.col(RIGHT.offset).isNull(), "unmatched").otherwise("paired").alias("match")
        ordered = rows.select(*ROW_SCHEMA.names, match).sortWithinPartitions("match", *self.rule.leading.place)
        overwrite_folder(self.writer.folder, self.folder, ordered, by="match")
