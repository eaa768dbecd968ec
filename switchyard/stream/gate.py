"""The data gate: before its flip, the rows of a generation are compared with the batch join at the same offsets.

The executors compare; only counts and the positions of some events reach the driver. Of a long history a sample is
compared (see `sampling`). The events of a new generation are read from the topics again (see `gate_topics`). Those of a
resumed one or of a snapshot are taken from its users and accounts: Kafka may no longer hold what it read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from switchyard.joins import JOINS
from switchyard.layout import Layout, forgotten_app_id
from switchyard.offsets import Offsets, count_records, from_json
from switchyard.records import JOIN_RULES, KEY, LEFT, PLACE, SIDES, Side
from switchyard.spec import GenerationSpec
from switchyard.stream.audit import compare_rows, read_at, read_paths
from switchyard.stream.gate_topics import SAMPLE_SHARE, TopicRows, find_end_to_read, interpreted, read_again
from switchyard.stream.sampling import Window, choose_events, choose_windows, list_ranges
from switchyard.tables import files, store
from switchyard.tables.batch_totals import read_chain
from switchyard.tables.folders import Folder
from switchyard.tables.forgotten import Marks, read_marks
from switchyard.tables.progress import Progress, newest_progress
from switchyard.tables.schemas import FILE_SCHEMAS

ROWS_SHARE = 4
"""Where events make many rows, as many events are counted as make so many times the limit, and some are compared."""


@dataclass(frozen=True)
class GateVerdict:
    compared: int
    """Joined rows"""
    missing: int
    extra: int
    records: int
    """All records that the generation has read"""
    events: int | None = None
    """How many events were compared, with all of their rows, where these are a sample"""
    wrong_records: int = 0
    """Records that are not the same in the topics and in `users` and `accounts`"""
    miscounted: int = 0
    """How many records more or fewer than were read are in `users`, `accounts` and `rejects`"""
    is_off: bool = False

    @property
    def is_clean(self) -> bool:
        return self.missing == self.extra == self.wrong_records == self.miscounted == 0

    def describe(self) -> str:
        if self.is_off:
            return "the data gate is turned off"
        if not self.records:
            return "no records yet to compare"
        rows = f"{self.compared} joined rows of {self.records} records"
        if self.events is not None:
            rows = f"{self.compared} joined rows of {self.events} events, a sample of {self.records} records,"
        if self.is_clean:
            return f"{rows} equal the batch join"
        stored = f"; {self.wrong_records} records are not stored as the topics have them" if self.wrong_records else ""
        stored += f"; {self.miscounted} records are not stored exactly once" if self.miscounted else ""
        return (
            f"of {rows.removesuffix(',')}, {self.extra} are not in the batch join "
            f"and {self.missing} of its rows are missing{stored}"
        )


def examine(
    spark: SparkSession,
    layout: Layout,
    spec: GenerationSpec,
    kafka: Mapping[str, str] | None,
    limit: int,
    known: TopicRows | None = None,
) -> GateVerdict:
    """Compare about `limit` records and no more than `limit` joined rows, unless one event alone makes more.

    Without `kafka` the events are taken from the generation's tables. `known` was read before, by `read_again`.
    """
    progress = newest_progress(layout, spec.generation)
    end = from_json(progress.endOffsets) if progress else {}
    records = max(0, count_records(spec.startOffsets, end))
    if not limit:
        return GateVerdict(0, 0, 0, records, is_off=True)
    if progress is None or not records:
        return GateVerdict(0, 0, 0, 0)
    rows = store.count_rows(layout, "joined", progress.joinedVersion, spec.generation)
    gate = _Gate(spark, layout, spec, progress, limit, end, records, rows)
    verdict = _compare(gate, kafka, known)
    return replace(verdict, miscounted=_count_miscounted(layout, progress))


def _count_miscounted(layout: Layout, progress: Progress) -> int:
    """Return how many records more or fewer are stored than were read. Only the Delta logs are read for it."""
    read = read_chain(layout, progress.generation, progress.batchId)
    versions = [(name, version) for name, version in progress.versions().items() if name != "joined"]
    stored = sum(store.count_rows(layout, name, version, progress.generation) for name, version in versions)
    return abs(read.inputRows - read.tombstones - stored)


def _compare(gate: _Gate, kafka: Mapping[str, str] | None, known: TopicRows | None) -> GateVerdict:
    spark, spec, end, limit = gate.spark, gate.spec, gate.end, gate.limit
    with interpreted(spark):
        if kafka is None:
            return gate.compare(gate.stored(gate.side, gate.windows), gate.stored(gate.side.other))
        marks, wanted = _marks_at(gate.layout, gate.progress), find_end_to_read(spec, end, limit) or end
        if known is not None and (known.end, known.marks) != (wanted, marks):
            known.release()
            known = None
        known = known or read_again(spark, spec, kafka, wanted, marks, limit)
        try:
            if gate.is_short:
                return gate.compare(known.events[gate.side], known.events[gate.side.other])
            return _examine_long(gate, known)
        finally:
            known.release()


def _examine_long(gate: _Gate, known: TopicRows) -> GateVerdict:
    """Compare some windows of the topics with what is stored, and the join of what is stored with `joined`."""
    # The data is small. What takes the time is Spark's planning, so it is done in parallel.
    with ThreadPoolExecutor(len(SIDES)) as pool:
        wrong = [pool.submit(gate.count_wrong, known, side) for side in SIDES]
        leading = gate.stored(gate.side, gate.windows).persist(StorageLevel.DISK_ONLY)
        try:
            verdict = gate.compare(leading, gate.stored(gate.side.other))
            return replace(verdict, wrong_records=sum(found.result() for found in wrong))
        finally:
            leading.unpersist()


@dataclass(frozen=True)
class _Gate:
    """One comparison of `joined` with the batch join, at one progress row."""

    spark: SparkSession
    layout: Layout
    spec: GenerationSpec
    progress: Progress
    limit: int
    end: Offsets
    records: int
    rows: int

    @property
    def side(self) -> Side:
        return JOIN_RULES[self.spec.joinType].leading

    @property
    def is_short(self) -> bool:
        return self.records <= self.limit

    @cached_property
    def windows(self) -> list[Window]:
        """The offsets of the leading side that are compared: all of a short history, else a sample"""
        ranges = list_ranges(self.spec.topic_of(self.side), self.spec.startOffsets, self.end)
        most = sum(window.size for window in ranges) if self.is_short else self.limit // SAMPLE_SHARE
        if self.rows > ROWS_SHARE * self.limit:
            most = min(most, ROWS_SHARE * self.limit * sum(window.size for window in ranges) // self.rows)
        return choose_windows(ranges, most)

    def stored(self, side: Side, windows: Sequence[Window] | None = None) -> DataFrame:
        """Return the events of a side as the generation has stored them: all, or those within windows."""
        rows = read_at(self.spark, self.layout, side.plural, self.progress)
        return rows if windows is None else rows.where(_is_within(windows, *PLACE))

    def count_wrong(self, known: TopicRows, side: Side) -> int:
        """Count the records of some windows of a topic that are not stored as the topic has them."""
        names = [name for name in FILE_SCHEMAS[side.plural].names if name != "topic"]
        stored = self.stored(side, known.windows[side])
        _, missing, extra, _ = compare_rows(known.events[side], stored, names, PLACE)
        return max(missing, extra)

    def compare(self, leading: DataFrame, others: DataFrame) -> GateVerdict:
        """Compare the join of two sides with `joined`; `leading` has at least the events within the windows."""
        if self.is_short and self.rows <= self.limit:
            return self._judge(leading, others, self._joined(), None)
        leading = leading.where(_is_within(self.windows, *PLACE))
        weights = self._weigh(leading, others)
        chosen = choose_events(weights["rows"].to_pylist(), self.limit, seed=self.spec.generation)
        # A row of `joined` at a place of the windows without a stored event is extra, so these places count too.
        stored = weights.select(PLACE)
        sampled = [stored.take(pa.array(chosen, pa.int64())), list_unstored(self.windows, stored)]
        # In one piece: of a table with an empty one in its middle, Spark 4.2 takes no row that comes after it.
        places = F.broadcast(self.spark.createDataFrame(pa.concat_tables(sampled).combine_chunks()))
        leading = leading.join(places, PLACE, "leftsemi")
        joined = self._joined().join(places.withColumnsRenamed(self.side.position), self.side.place, "leftsemi")
        return self._judge(leading, _keep_keys_of(leading, others), joined, len(chosen))

    def _judge(self, leading: DataFrame, others: DataFrame, joined: DataFrame, events: int | None) -> GateVerdict:
        users, accounts = (leading, others) if self.side == LEFT else (others, leading)
        expected = JOINS[self.spec.joinType](users, accounts, self.spec.stateRetention)
        compared, missing, extra, _ = compare_rows(expected, joined)
        return GateVerdict(compared, missing, extra, self.records, events)

    def _weigh(self, leading: DataFrame, others: DataFrame) -> pa.Table:
        """Estimate how many rows the join makes of each event within the windows: never less than it does."""
        met = _keep_keys_of(leading, others).groupBy(_key().alias("key")).agg(F.count("*").alias("rows"))
        weighed = leading.select(*PLACE, _key().alias("key")).join(F.broadcast(met), "key", "left")
        return weighed.select(*PLACE, F.coalesce("rows", F.lit(1)).alias("rows")).toArrow()

    def _joined(self) -> DataFrame:
        """Return the rows of the events within the windows, with others of the same files."""
        folder = Folder.at(self.layout.table("joined"))
        table = store.open_version(self.layout, "joined", self.progress.joinedVersion)
        live = files.list_files(table, self.spec.generation, self.side.place)
        paths = [folder.spark_uri(file.path) for file in live if any(_may_hold(file, part) for part in self.windows)]
        return read_paths(self.spark, "joined", paths)


def list_unstored(windows: Sequence[Window], stored: pa.Table) -> pa.Table:
    """Return the places within windows, with the columns of PLACE, at which no event is stored."""
    partitions, offsets = (stored[name].to_numpy() for name in PLACE)
    tables = [stored.slice(0, 0)]
    for window in windows:
        places = np.arange(window.first, window.after)
        free = np.setdiff1d(places, offsets[partitions == window.partition])
        tables.append(pa.table([np.full(len(free), window.partition), free], names=PLACE).cast(stored.schema))
    return pa.concat_tables(tables)


def _key() -> Column:
    # A hash, so that what is broadcast stays small however long the keys are. Of two people with the same hash both
    # are kept, and the join tells them apart.
    return F.xxhash64(KEY)


def _keep_keys_of(leading: DataFrame, others: DataFrame) -> DataFrame:
    keys = F.broadcast(leading.select(_key().alias("key")).distinct())
    return others.join(keys, _key() == F.col("key"), "leftsemi")


def _is_within(windows: Sequence[Window], partition: str, offset: str) -> Column:
    parts = [
        (F.col(partition) == w.partition) & (F.col(offset) >= w.first) & (F.col(offset) < w.after) for w in windows
    ]
    return reduce(or_, parts, F.lit(False))


def _may_hold(file: files.LiveFile, window: Window) -> bool:
    (low, high), (first, last) = file.partitions, file.offsets
    return low <= window.partition <= high and first < window.after and last >= window.first


def _marks_at(layout: Layout, progress: Progress) -> Marks:
    """Return the marks of `forgotten` that were carried out on the compared rows."""
    joined = store.open_version(layout, "joined", progress.joinedVersion)
    return read_marks(layout).up_to(joined.transaction_version(forgotten_app_id(progress.generation)) or 0)
