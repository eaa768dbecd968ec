"""Collect a micro-batch into the driver as Arrow, unless it is more than the driver may take."""

from __future__ import annotations

import logging
from functools import cache, reduce
from operator import add

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from switchyard.records import BATCH
from switchyard.stream.session import MAX_RESULT_SIZE
from switchyard.tables.joined_changes import BATCH_SCHEMA

MOST_TASK_ROWS = 64_000
MOST_TASK_BYTES = 12 * 2**20
"""What a task may send to the driver: so many rows, and at row number n only a row below 12 MiB / n"""
ROW_BYTES = 64
"""Of the numbers and times in a row"""
OVERFLOW = "overflow"
log = logging.getLogger("switchyard.driver")


def collect_if_it_fits(rows: DataFrame) -> pa.Table | None:
    """Return the rows of a batch; None when they are more than the driver may take."""
    # A task holds all that it sends, so a few records with millions of pairs must be stopped there. Spark's
    # maxResultSize counts only what has arrived.
    try:
        table = rows.select("*", number_in_task().alias("index")).where(F.col("index") <= MOST_TASK_ROWS)
        collected = table.select(*_collected_columns()).toArrow()
    except Py4JJavaError as error:
        if MAX_RESULT_SIZE not in str(error):
            raise
        collected = None
    if collected is None or pc.any(pc.equal(collected["kind"], OVERFLOW)).as_py():
        log.warning("a small batch made too many pairs for the driver; the executors write it")
        return None
    return collected.cast(BATCH_SCHEMA)


def number_in_task() -> Column:
    """Number the rows of each task from 0: the lower 33 bits of Spark's ids."""
    return F.monotonically_increasing_id().bitwiseAND(F.lit(2**33 - 1))


@cache
def _collected_columns() -> list[Column]:
    """Return the columns of a batch. Of a row that is too much for the driver, only its kind is sent: OVERFLOW."""
    texts = [name for name, kind in BATCH.items() if kind == "string" and name != "kind"]
    size = reduce(add, [F.coalesce(F.octet_length(name), F.lit(0)) for name in texts], F.lit(ROW_BYTES))
    is_over = (F.col("index") == MOST_TASK_ROWS) | (F.col("index") * size > MOST_TASK_BYTES)
    instead = {"kind": F.lit(OVERFLOW)} | {name: F.lit(None) for name in texts}
    return [
        F.when(is_over, instead[name]).otherwise(F.col(name)).alias(name) if name in instead else F.col(name)
        for name in BATCH
    ]
