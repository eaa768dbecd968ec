"""Rows as numbers of 64 bits, by which the data gate compares many rows at the cost of few.

Of a record its place, its key and its row reach the driver as numbers. Joined rows are only counted and summed up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from switchyard.records import JOINED, KEY, PLACE, POSITION, Columns, Side


def hash_row(columns: Columns) -> Column:
    """Return a number that is the same for equal rows and, but for one fault in 2**64, another for different ones."""
    # Spark's hash skips a null, so it also gets which values are null. As text, because each call into the JVM takes
    # time while a swap waits.
    values = [f"cast({name} as {kind})" for name, kind in columns.items()]
    return F.expr(f"xxhash64({', '.join([*values, *(f'{name} is null' for name in columns)])})")


def hash_key() -> Column:
    # Two people may have the same number. Both are kept then, and the join tells them apart.
    return F.xxhash64(KEY)


def collect_fingerprints(events: Mapping[Side, DataFrame]) -> dict[Side, pa.Table]:
    """Return place, key and row of each event, as numbers and in the order of the places. Give it bounded frames."""
    frames = [
        frame.select(
            F.lit(side.plural).alias("side"),
            *PLACE,
            hash_key().alias("key"),
            hash_row({**side.columns, **POSITION}).alias("row"),
        )
        for side, frame in events.items()
    ]
    rows = reduce(DataFrame.union, frames).toArrow()
    return {
        side: rows.filter(pc.equal(rows["side"], side.plural))
        .drop("side")
        .sort_by([(name, "ascending") for name in PLACE])
        for side in events
    }


def count_differing(expected: pa.Table, actual: pa.Table) -> int:
    """Compare the fingerprints of events as multisets; return how many are missing or extra, whichever is more."""
    signed = pa.concat_tables(
        [
            table.append_column("surplus", pa.array([sign] * table.num_rows, pa.int64()))
            for table, sign in ((expected, 1), (actual, -1))
        ]
    )
    surplus = signed.group_by([*PLACE, "row"]).aggregate([("surplus", "sum")])["surplus_sum"]
    parts = [surplus, pc.negate(surplus)]
    return max(int(pc.sum(pc.max_element_wise(part, 0), min_count=0).as_py()) for part in parts)


def sum_up(expected: DataFrame, actual: DataFrame) -> tuple[int, bool]:
    """Return how many actual joined rows there are, and whether both frames have the same ones, as often."""
    row, is_actual = hash_row(JOINED).cast("decimal(20,0)").alias("row"), F.col("isActual")
    rows = expected.select(row, F.lit(False).alias("isActual")).union(actual.select(row, F.lit(True)))
    count, surplus, difference = rows.agg(
        F.count_if(is_actual),
        F.sum(F.when(is_actual, 1).otherwise(-1)),
        F.sum(F.when(is_actual, F.col("row")).otherwise(-F.col("row"))),
    ).collect()[0]
    return count, not surplus and not difference
