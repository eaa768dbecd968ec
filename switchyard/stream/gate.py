"""The data gate: before its flip, the first rows of a generation are compared with the batch join at the same offsets.

The batch side reads the topics again, from the start of the generation to the end of its first batch with records, and
applies the function of `joins`. A resumed generation is compared with its own users and accounts tables: Kafka may no
longer hold what it read.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from switchyard.generations import GenerationSpec
from switchyard.joins import JOINED_COLUMNS, JOINS
from switchyard.layout import Layout, forgotten_app_id
from switchyard.offsets import Offsets, count_records, from_json
from switchyard.stream.audit import read_at
from switchyard.stream.changes import ROW_SCHEMA
from switchyard.stream.decode import ACCOUNT_FIELDS, USER_FIELDS, Field, decode
from switchyard.stream.forgotten_frames import keep_remembered
from switchyard.stream.query import read_range
from switchyard.tables import store
from switchyard.tables.forgotten import Marks, read_marks
from switchyard.tables.progress import Progress, batches, newest_progress


@dataclass(frozen=True)
class Verdict:
    compared: int
    missing: int
    extra: int
    records: int
    share: int = 1
    """Every so manieth user was compared; 0: none, by the settings"""

    @property
    def is_clean(self) -> bool:
        return self.missing == self.extra == 0

    def describe(self) -> str:
        if not self.records:
            return "no records yet to compare"
        if not self.share:
            return "the data gate is turned off"
        if self.is_clean:
            some = f", those of one user in {self.share}" if self.share > 1 else ""
            return f"{self.compared} joined rows of {self.records} records{some} equal the batch join"
        return (
            f"of {self.compared} joined rows of {self.records} records, {self.extra} are not in the batch join "
            f"and {self.missing} of its rows are missing"
        )


@dataclass(frozen=True)
class Expected:
    """What the batch join makes of the topics up to an end."""

    end: Offsets
    marks: Marks
    rows: pa.Table


def expect(
    spark: SparkSession, spec: GenerationSpec, kafka: Mapping[str, str], limit: int, end: Offsets, marks: Marks
) -> Expected:
    """Reads the topics again. It can be done while the batch that is to be compared is still under way."""
    share = max(1, count_records(spec.startOffsets, end) // limit)
    with _interpreted(spark):
        users, accounts = (
            keep_remembered(_read_topic(spark, topic, fields, kafka, spec.startOffsets, end), marks, topic)
            for topic, fields in ((spec.usersTopic, USER_FIELDS), (spec.accountsTopic, ACCOUNT_FIELDS))
        )
        return Expected(end, marks, _join(users, accounts, spec, share))


def _join(users: DataFrame, accounts: DataFrame, spec: GenerationSpec, share: int) -> pa.Table:
    joined = JOINS[spec.joinType](sample_users(users, share), sample_users(accounts, share), spec.stateRetention)
    return joined.select(*JOINED_COLUMNS).toArrow().cast(ROW_SCHEMA)


def examine(
    spark: SparkSession,
    layout: Layout,
    spec: GenerationSpec,
    kafka: Mapping[str, str],
    limit: int,
    is_resumed: bool,
    known: Expected | None = None,
) -> Verdict:
    """Compares about `limit` records; of more, those of a share of the users, with all of their rows."""
    progress = newest_progress(layout, spec.generation) if is_resumed else _first_with_records(layout, spec)
    if progress is None or progress.endOffsets is None:
        return Verdict(0, 0, 0, 0)
    end = from_json(progress.endOffsets)
    records = count_records(spec.startOffsets, end)
    if not limit:
        return Verdict(0, 0, 0, records, share=0)
    share = max(1, records // limit)
    if is_resumed:
        with _interpreted(spark):
            users, accounts = (read_at(spark, layout, name, progress) for name in ("users", "accounts"))
            expected = _join(users, accounts, spec, share)
    else:
        marks = _marks_at(layout, progress)
        if known is None or (known.end, known.marks) != (end, marks):
            known = expect(spark, spec, kafka, limit, end, marks)
        expected = known.rows
    actual = store.read_arrow(
        layout,
        "joined",
        version=progress.joinedVersion,
        generation=spec.generation,
        columns=list(JOINED_COLUMNS),
    )
    return judge(expected, actual, share, records)


def judge(expected: pa.Table, actual: pa.Table, share: int, records: int) -> Verdict:
    """Compares the rows as multisets. `actual` holds all users, `expected` those of the share."""
    if share > 1:
        ids = actual["userId"].to_pylist()
        actual = actual.filter(pa.array([zlib.crc32(user_id.encode()) % share == 0 for user_id in ids], pa.bool_()))
    wanted, there = (Counter(zip(*table.to_pydict().values(), strict=True)) for table in (expected, actual))
    return Verdict(actual.num_rows, (wanted - there).total(), (there - wanted).total(), records, share)


@contextmanager
def _interpreted(spark: SparkSession) -> Iterator[None]:
    """One look at a few rows: compiling the plan would take longer than running it. The stream has its own session."""
    names = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in zip(names, ("false", "NO_CODEGEN"), strict=True):
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _first_with_records(layout: Layout, spec: GenerationSpec) -> Progress | None:
    return next((row for row in batches(layout, spec.generation) if row.inputRows), None)


def _marks_at(layout: Layout, progress: Progress) -> Marks:
    """The marks of `forgotten` that the compared rows went by."""
    joined = store.open_table(layout, "joined", progress.joinedVersion)
    return read_marks(layout).up_to(joined.transaction_version(forgotten_app_id(progress.generation)) or 0)


def sample_users(rows: DataFrame, share: int) -> DataFrame:
    return rows if share == 1 else rows.where(F.crc32(F.encode("userId", "utf-8")) % share == 0)


def _read_topic(
    spark: SparkSession, topic: str, fields: tuple[Field, ...], kafka: Mapping[str, str], start: Offsets, end: Offsets
) -> DataFrame:
    """The valid records of a topic between two positions, with the columns of its table."""
    records = read_range(spark, topic, kafka, start, end)
    return decode(records, fields).where("kind = 'valid'").drop("kind", "text", "reason", "owner")
