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

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from switchyard.joins import JOINS
from switchyard.layout import Layout, forgotten_app_id
from switchyard.offsets import Offsets, count_records, from_json
from switchyard.records import JOIN_RULES, LEFT, PLACE, SIDES, Side
from switchyard.spec import GenerationSpec
from switchyard.stream.audit import compare_rows, read_at, read_paths
from switchyard.stream.fingerprints import collect_fingerprints, count_differing, hash_key, sum_up
from switchyard.stream.gate_topics import SAMPLE_SHARE, TopicRecords, find_end_to_read, interpreted, read_again
from switchyard.stream.sampling import Window, choose_events, choose_windows, list_ranges, split_places
from switchyard.tables import files, store
from switchyard.tables.batch_totals import read_chain
from switchyard.tables.folders import Folder
from switchyard.tables.forgotten import Marks, read_marks
from switchyard.tables.progress import Progress, newest_progress

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
    known: TopicRecords | None = None,
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


def _compare(gate: _Gate, kafka: Mapping[str, str] | None, known: TopicRecords | None) -> GateVerdict:
    with interpreted(gate.spark):
        if kafka is None:
            return gate.compare()
        marks = _marks_at(gate.layout, gate.progress)
        end = find_end_to_read(gate.spec, gate.end, gate.limit) or gate.end
        if known is None or (known.end, known.marks) != (end, marks):
            known = read_again(gate.spark, gate.spec, kafka, end, marks, gate.limit)
        # The data is small. What takes the time is Spark's planning, so both are done side by side.
        with ThreadPoolExecutor(1) as pool:
            wrong = pool.submit(gate.count_wrong, known)
            verdict = gate.compare(known.fingerprints[gate.side])
            return replace(verdict, wrong_records=wrong.result())


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

    def count_wrong(self, known: TopicRecords) -> int:
        """Count the records of the topics that are not stored as the topics have them."""
        stored = collect_fingerprints({side: self.stored(side, known.windows[side]) for side in SIDES})
        return sum(count_differing(known.fingerprints[side], stored[side]) for side in SIDES)

    def compare(self, events: pa.Table | None = None) -> GateVerdict:
        """Compare the join of what is stored with `joined`: all rows, or those of some events of the leading side.

        `events` has fingerprints of these, at least of those within the windows; else the stored ones are asked for.
        """
        leading, others = self.stored(self.side, self.windows), self.stored(self.side.other)
        if self.is_short and self.rows <= self.limit:
            return self._judge(leading, others, self._joined(), None)
        if events is None:
            events = collect_fingerprints({self.side: leading})[self.side]
        stored, unstored = split_places(self.windows, events)
        indexes = choose_events(self._weigh(stored, others), self.limit, seed=self.spec.generation)
        chosen = stored.take(pa.array(indexes, pa.int64()))
        # A row of `joined` at a place of the windows without a stored event is extra, so these places count too.
        # In one piece: of a table with an empty one in its middle, Spark 4.2 takes no row that comes after it.
        places = self._broadcast(pa.concat_tables([chosen.select(PLACE), unstored]).combine_chunks())
        # Spark looks up a place far more slowly than it compares numbers, and most rows of the files are outside.
        joined = self._joined().where(_is_within(self.windows, *self.side.place))
        joined = joined.join(places.withColumnsRenamed(self.side.position), self.side.place, "leftsemi")
        others = self._keep_keys(others, chosen)
        return self._judge(leading.join(places, PLACE, "leftsemi"), others, joined, chosen.num_rows)

    def _judge(self, leading: DataFrame, others: DataFrame, joined: DataFrame, events: int | None) -> GateVerdict:
        users, accounts = (leading, others) if self.side == LEFT else (others, leading)
        expected = JOINS[self.spec.joinType](users, accounts, self.spec.stateRetention)
        (compared, is_same), missing, extra = sum_up(expected, joined), 0, 0
        if not is_same:
            compared, missing, extra, _ = compare_rows(expected, joined)
        return GateVerdict(compared, missing, extra, self.records, events)

    def _weigh(self, events: pa.Table, others: DataFrame) -> list[int]:
        """Estimate how many rows the join makes of each of some events: never less than it does."""
        met = self._keep_keys(others, events).groupBy(hash_key().alias("key")).agg(F.count("*").alias("rows")).toArrow()
        rows = dict(zip(met["key"].to_pylist(), met["rows"].to_pylist(), strict=True))
        return [rows.get(key, 1) for key in events["key"].to_pylist()]

    def _keep_keys(self, others: DataFrame, events: pa.Table) -> DataFrame:
        keys = self._broadcast(pa.table({"key": events["key"].unique()}))
        return others.join(keys, hash_key() == F.col("key"), "leftsemi")

    def _broadcast(self, table: pa.Table) -> DataFrame:
        return F.broadcast(self.spark.createDataFrame(table))

    def _joined(self) -> DataFrame:
        """Return the rows of the events within the windows, with others of the same files."""
        folder = Folder.at(self.layout.table("joined"))
        table = store.open_version(self.layout, "joined", self.progress.joinedVersion)
        live = files.list_files(table, self.spec.generation, self.side.place)
        paths = [folder.spark_uri(file.path) for file in live if any(_may_hold(file, part) for part in self.windows)]
        return read_paths(self.spark, "joined", paths)


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
