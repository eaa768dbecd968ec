"""Recompute a generation's join from its users and accounts at fixed versions, and compare it with `joined`.

It also accounts for every consumed record: each is in users, accounts or rejects exactly once, or was a tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from switchyard.errors import InputError
from switchyard.joins import JOINS
from switchyard.layout import BIG_TABLES, Layout
from switchyard.object_store import to_hadoop
from switchyard.offsets import count_records
from switchyard.records import JOINED, PLACE, PLACES, SIDES
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.swap.generations import load_spec
from switchyard.tables import store
from switchyard.tables.batch_totals import Chain, read_chain
from switchyard.tables.progress import Progress, newest_progress
from switchyard.tables.schemas import FILE_SCHEMAS
from switchyard.tables.status import read_status

MOST_SAMPLES = 5


@dataclass(frozen=True)
class Audit:
    generation: int
    rowsCompared: int
    missing: int
    extra: int
    unaccounted: int
    """Records that were consumed but are not stored exactly once, plus breaks in the chain of batches."""
    holes: int
    """Offsets in the consumed ranges that held no record: normal on compacted or transactional topics."""
    usersVersion: int
    accountsVersion: int
    joinedVersion: int
    rejectsVersion: int
    samples: list[dict[str, object]]
    """Positions (never values) of the first rows that differ."""

    @property
    def is_clean(self) -> bool:
        return self.missing == self.extra == self.unaccounted == 0


def audit_at_newest(
    start_spark: Callable[[], SparkSession], settings: Settings, generation: int | None = None
) -> Audit:
    """Audit a generation, the active one by default, at its newest progress row."""
    layout = settings.layout
    if generation is None:
        status = read_status(layout)
        if status is None:
            raise InputError("no generation is active yet, so there is nothing to audit")
        generation = status.generation
    spec, progress = load_spec(layout, generation), newest_progress(layout, generation)
    if spec is None or progress is None:
        raise InputError(f"there is no generation {generation} to audit")
    return audit_generation(start_spark(), layout, spec, progress)


def audit_generation(spark: SparkSession, layout: Layout, spec: GenerationSpec, progress: Progress) -> Audit:
    tables = {name: read_at(spark, layout, name, progress) for name in BIG_TABLES}
    left, right = (tables[side.plural] for side in SIDES)
    expected = JOINS[spec.joinType](left, right, spec.stateRetention)
    compared, missing, extra, samples = compare_rows(expected, tables["joined"])
    stored = [tables[name] for name in BIG_TABLES if name != "joined"]
    unaccounted, holes = _account(spec, stored, read_chain(layout, spec.generation, progress.batchId))
    return Audit(
        generation=spec.generation,
        rowsCompared=compared,
        missing=missing,
        extra=extra,
        unaccounted=unaccounted,
        holes=holes,
        samples=samples,
        **{f"{name}Version": version for name, version in progress.versions().items()},
    )


def record_audit(layout: Layout, audit: Audit) -> None:
    row = asdict(audit) | {"at": datetime.now(UTC)}
    row["detail"] = json.dumps({"holes": row.pop("holes"), "samples": row.pop("samples")})
    store.append_rows(layout, "audits", [row])


def read_at(spark: SparkSession, layout: Layout, name: str, progress: Progress) -> DataFrame:
    # The list of files comes from delta-rs: Spark's own replay of four Delta logs took most of an audit's time.
    files = store.list_files(layout, name, progress.version_of(name), progress.generation)
    return read_paths(spark, name, [to_hadoop(file) for file in files])


def read_paths(spark: SparkSession, name: str, paths: list[str]) -> DataFrame:
    schema = from_arrow_schema(FILE_SCHEMAS[name])
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


def compare_rows(expected: DataFrame, actual: DataFrame) -> tuple[int, int, int, list[dict[str, object]]]:
    """Compare rows as multisets; return how many are there, missing and extra, and places of some that differ."""
    signed = expected.select(*JOINED, F.lit(1).alias("surplus")).union(
        actual.select(*JOINED, F.lit(-1).alias("surplus"))
    )
    counted = signed.groupBy(*JOINED).agg(
        F.sum("surplus").alias("surplus"), F.count(F.when(F.col("surplus") < 0, 1)).alias("present")
    )
    surplus = F.col("surplus")
    compared, missing, extra = counted.agg(
        F.sum("present"), F.sum(F.greatest(surplus, F.lit(0))), F.sum(F.greatest(-surplus, F.lit(0)))
    ).collect()[0]
    kind = F.when(surplus > 0, "missing").otherwise("extra").alias("kind")
    # Computed again where there is a difference: to keep all rows, in case there is, costs more than to compare them.
    differing = counted.where(surplus != 0).select(kind, *PLACES).limit(MOST_SAMPLES)
    samples = [row.asDict() for row in differing.collect()] if missing or extra else []
    return compared or 0, missing or 0, extra or 0, samples


def _account(spec: GenerationSpec, stored: Sequence[DataFrame], seen: Chain) -> tuple[int, int]:
    every = reduce(DataFrame.union, [frame.select("topic", *PLACE) for frame in stored])
    count, distinct = every.agg(F.count("*"), F.countDistinct("topic", *PLACE)).collect()[0]
    breaks = seen.breaks + (seen.start is not None and seen.start != spec.startOffsets)
    unaccounted = abs(seen.inputRows - seen.tombstones - count) + (count - distinct) + breaks
    spanned = 0 if seen.end is None else count_records(spec.startOffsets, seen.end)
    return unaccounted, spanned - seen.inputRows
