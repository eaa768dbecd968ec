"""Apply the marks of `forgotten` to DataFrames, as `tables/forgetting.py` does to Arrow tables.

Used for batches that are too big for the driver, and for the data gate.
"""

from __future__ import annotations

import json
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from switchyard.records import KEY, PLACE, POSITIONS, SIDES
from switchyard.spec import GenerationSpec
from switchyard.tables.forgetting import REASON
from switchyard.tables.forgotten import Marks


def skip_forgotten_rows(rows: DataFrame, marks: Marks, spec: GenerationSpec) -> DataFrame:
    """Drop the forgotten pairs of a batch, and turn forgotten records into rejects without a value."""
    if not marks.marks:
        return rows
    judged = rows
    for side in SIDES:
        name = f"{side.singular}Gone"
        bounds = _bounds(rows, marks, spec.topic_of(side), name)
        judged = judged.join(bounds, _is_below(marks, name, *side.place), "left")
    gone = reduce(or_, (F.col(f"{side.singular}Gone").isNotNull() for side in SIDES))
    kept = judged.where(~(gone & (F.col("kind") == "pair")))
    return kept.select(*[_blanked(name, gone) for name in rows.columns])


def keep_remembered(events: DataFrame, marks: Marks, topic: str) -> DataFrame:
    """Keep the events of a topic that are not forgotten."""
    if not marks.bounds(topic):
        return events
    return events.join(_bounds(events, marks, topic, "gone"), _is_below(marks, "gone", *PLACE), "anti")


def _bounds(rows: DataFrame, marks: Marks, topic: str, name: str) -> DataFrame:
    """Return a frame with one row for each person and partition."""
    # Made in the JVM, as a Python list would need Python workers.
    bounds = [
        {name: user_hash, f"{name}In": partition, f"{name}Below": offset}
        for user_hash, partitions in marks.bounds(topic).items()
        for partition, offset in partitions.items()
    ]
    schema = f"array<struct<{name}: string, {name}In: int, {name}Below: long>>"
    one = rows.sparkSession.range(1)
    return F.broadcast(one.select(F.inline(F.from_json(F.lit(json.dumps(bounds)), schema))))


def _is_below(marks: Marks, name: str, partition: str, offset: str) -> Column:
    return (
        (F.sha2(F.concat(F.lit(marks.salt), F.col(KEY)), 256) == F.col(name))
        & (F.col(partition) == F.col(f"{name}In"))
        & (F.col(offset) < F.col(f"{name}Below"))
    )


def _blanked(name: str, gone: Column) -> Column:
    if name in POSITIONS:
        return F.col(name)
    given = {"kind": F.lit("reject"), "reason": F.lit(REASON)}.get(name, F.lit(None))
    return F.when(gone, given).otherwise(F.col(name)).alias(name)
