"""Read the topics again for the data gate: all records up to an end, or some windows of a long history.

It needs nothing that the generation has written, so it can be done while the first batch is still under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from switchyard.offsets import Offsets, count_records
from switchyard.records import SIDES, Side
from switchyard.spec import GenerationSpec
from switchyard.stream.decode import decode
from switchyard.stream.fingerprints import collect_fingerprints
from switchyard.stream.forgotten_frames import keep_remembered
from switchyard.stream.query import read_range
from switchyard.stream.sampling import Window, choose_windows, list_ranges
from switchyard.tables.forgotten import Marks

SAMPLE_SHARE = 4
"""Of a long history, the records read again in each topic are the limit divided by this."""


@dataclass(frozen=True)
class TopicRecords:
    """Fingerprints of the valid events of both topics, up to an end or of some windows."""

    end: Offsets
    marks: Marks
    windows: dict[Side, list[Window]]
    fingerprints: dict[Side, pa.Table]


def find_end_to_read(spec: GenerationSpec, batch_end: Offsets, limit: int) -> Offsets | None:
    """Return the end up to which the gate will read the topics again; None while that is not known.

    All that is known is where the first batch ends. A long history is sampled up to its ready offsets. A short one is
    compared as a whole, so its end is known only if the first batch reads all of it.
    """
    if count_records(spec.startOffsets, spec.readyOffsets) > limit:
        return spec.readyOffsets
    return batch_end if count_records(spec.startOffsets, batch_end) <= limit else None


def read_again(
    spark: SparkSession, spec: GenerationSpec, kafka: Mapping[str, str], end: Offsets, marks: Marks, limit: int
) -> TopicRecords:
    """Read both topics again up to an end; only some windows when there are more than `limit` records."""
    most = limit if count_records(spec.startOffsets, end) <= limit else limit // SAMPLE_SHARE
    ranges = {side: list_ranges(spec.topic_of(side), spec.startOffsets, end) for side in SIDES}
    windows = {side: choose_windows(ranges[side], most) for side in SIDES}
    events = {}
    with interpreted(spark):
        for side in SIDES:
            topic = spec.topic_of(side)
            rows = decode(_read_windows(spark, topic, kafka, windows[side]), side).where("kind = 'valid'")
            events[side] = keep_remembered(rows, marks, topic)
        return TopicRecords(end, marks, windows, collect_fingerprints(events))


def _read_windows(spark: SparkSession, topic: str, kafka: Mapping[str, str], windows: Sequence[Window]) -> DataFrame:
    # Spark reads one range of each partition at a time, so the windows of a partition are read one after the other.
    rounds: dict[int, dict[int, Window]] = {}
    for window in windows:
        rounds.setdefault(sum(window.partition in taken for taken in rounds.values()), {})[window.partition] = window
    parts = []
    for taken in rounds.values():
        starts, ends = ({topic: {w.partition: getattr(w, at) for w in taken.values()}} for at in ("first", "after"))
        parts.append(read_range(spark, topic, kafka, starts, ends))
    return reduce(DataFrame.union, parts)


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Interpret Spark's plans in this session: to compile those of a small sample takes longer than to run them."""
    wanted = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Interpreted, each row looks shared parts of expressions up in a cache, which costs more than it saves.
        "spark.sql.subexpressionElimination.enabled": "false",
    }
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
