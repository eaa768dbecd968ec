"""How long an event takes from the producer to a row that a reader of `final_ui` can see, against an append.

500 events a second go to two topics, of people who have a few users and a few accounts each. A real driver, submitted
as Airflow would do it, joins them; in the middle of the joins a plain append of the same kind of events is measured for
a quarter of the time: spark-submit with the same heap, class archive, session and trigger, Spark's own Delta writer,
one query for each topic and no join. Each side first runs without being measured, from the moment its rows are visible;
the append twice as long, so that it is no slower than it is.

`--at-once` tells only the joins when a batch begins as soon as the one before has ended, without the wait for the next
second. `--plain` measures another append, alone: with the JVM that its user would give it, Spark's own heap and no
options, and after a minute without being measured, when its code is compiled.

From: the record's timestamp, which the producer writes. To: the time of the commit that makes the row readable, from
the file in the Delta log. For the append that is the commit that holds the row. `final_ui` is read at the versions that
the newest row of `progress` names, so for a join it is the commit of that row, which comes after the one of `joined`.

The time is cut into windows of ten seconds; beside each join the p50 of the half of them in which others took the least
of the processor time is told, and that of the other half: what a busy host does to it.

Which events count: for left and natural each, as each adds or changes a row; for asof accounts, which make the rows;
for inner the later event of each pair.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from bench.drivers import GENERATION, PLAIN_HEAP, Driver, is_active, running_append, running_generation
from bench.measure import Figure, keep, quantile, read_processor_time, stolen_share, tell
from bench.stage import DELTA_CONF, Filler, running_broker
from switchyard import offsets
from switchyard.drivers.submission import JAVA_OPTIONS
from switchyard.kafka.topics import TopicReader
from switchyard.layout import JOIN_TYPES, Layout
from switchyard.offsets import Offsets, has_reached
from switchyard.settings import Settings
from switchyard.tables import store
from switchyard.tables.commits import has_commit, read_commit
from switchyard.tables.files import pack_positions
from switchyard.tables.folders import Folder
from switchyard.tables.progress import batches, newest_progress

SIDES = ("users", "accounts")
TARGETS = {"p50": (0.5, 1.2), "p95": (0.95, 1.5)}
LIMIT_SECONDS = 1.5
EVENTS_OF_A_PERSON = 8
START_SECONDS, REST_SECONDS, STEADY_SECONDS = 120, 60, 60
WINDOW_SECONDS = 10
TRIGGER_SECONDS = 1.0
Numbers = np.ndarray[Any, np.dtype[Any]]
Result = tuple[list[Figure], dict[str, Any]]


@dataclass(frozen=True)
class Events:
    """Events of one topic: where they are, and when they were produced, in seconds since 1970."""

    partitions: Numbers
    offsets: Numbers
    produced: Numbers

    def take(self, chosen: Numbers) -> Events:
        return Events(self.partitions[chosen], self.offsets[chosen], self.produced[chosen])


def is_within(moments: Numbers, since: float, until: float) -> Numbers:
    return (moments >= since) & (moments < until)


@dataclass(frozen=True)
class Latencies:
    """Seconds from each event until it can be read, beside the time at which it was produced."""

    produced: Numbers
    seconds: Numbers

    def __len__(self) -> int:
        return len(self.seconds)

    @classmethod
    def of(cls, parts: Sequence[Latencies]) -> Latencies:
        produced, seconds = ([getattr(part, name) for part in parts] for name in ("produced", "seconds"))
        return cls(np.concatenate(produced), np.concatenate(seconds))

    def quantile(self, share: float) -> float:
        return quantile(self.seconds, share)


@dataclass(frozen=True)
class Window:
    """A few seconds of a measurement, with the share of the processor time that others took in them."""

    since: float
    until: float
    stolen: float


@dataclass(frozen=True)
class Half:
    """The quieter or the busier half of the time: what others took of it, and the median latency of its events."""

    stolen: float
    p50: float


def split_by_load(latencies: Latencies, windows: Sequence[Window]) -> tuple[Half, Half]:
    """Return the quieter half of the windows and the busier one."""
    ordered = sorted(windows, key=lambda window: window.stolen)
    middle = len(ordered) // 2
    return _describe_half(latencies, ordered[:middle]), _describe_half(latencies, ordered[middle:])


def _describe_half(latencies: Latencies, windows: Sequence[Window]) -> Half:
    inside = np.zeros(len(latencies), dtype=bool)
    for window in windows:
        inside |= is_within(latencies.produced, window.since, window.until)
    stolen = statistics.mean(window.stolen for window in windows)
    return Half(stolen, quantile(latencies.seconds[inside], 0.5))


@dataclass(frozen=True)
class Visible:
    """From a moment on, all records up to these positions can be read."""

    at: float
    ends: Offsets


def find_latencies(topic: str, events: Events, seen: Sequence[Visible]) -> Latencies:
    """Return the seconds from each event to the first moment at which it can be read; infinite when there is none."""
    ordered = sorted(seen, key=lambda visible: visible.at)
    moments = np.array([visible.at for visible in ordered] + [np.inf])
    latencies = np.full(len(events.produced), np.inf)
    for partition in np.unique(events.partitions):
        ends = np.array([visible.ends.get(topic, {}).get(int(partition), 0) for visible in ordered], dtype=np.int64)
        here = events.partitions == partition
        first = np.searchsorted(np.maximum.accumulate(ends), events.offsets[here], side="right")
        latencies[here] = moments[first] - events.produced[here]
    return Latencies(events.produced, latencies)


def produce(bootstrap: str, users: str, accounts: str, rate: int, people: int, stop: Event) -> None:
    """Produce in a separate process, which takes nothing from the threads of what is measured."""
    filler, began = Filler(bootstrap, users, accounts), time.monotonic()
    while not stop.wait(0.01):
        due = int((time.monotonic() - began) * rate) - filler.sent
        filler.send(range(people), 0.5, due)
    filler.flush()


@contextmanager
def flowing(bootstrap: str, users: str, accounts: str, rate: int, people: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=produce, args=(bootstrap, users, accounts, rate, people, stop))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(30)


def commit_times(folder: Folder, first: int = 0) -> Iterator[tuple[int, float]]:
    """Return versions of a local table with the time at which each was there."""
    version = first
    while has_commit(folder, version):
        yield version, Path(folder.full(f"_delta_log/{version:020}.json")).stat().st_mtime
        version += 1


def read_progress(layout: Layout) -> list[Visible]:
    """When `final_ui` began to show the end of each batch."""
    if not store.has_table(layout, "progress"):
        return []
    folder, seen = Folder.at(layout.table("progress")), []
    for version, at in commit_times(folder):
        commit = read_commit(folder, version)
        rows = (
            [row for file in commit.added for row in store.read_file(folder.as_filesystem(), file.path, "progress")]
            if commit
            else []
        )
        seen += [Visible(at, offsets.from_json(row["endOffsets"])) for row in rows if row["endOffsets"]]
    return seen


def events_of(rows: pa.Table, names: Sequence[str]) -> Events:
    partition, offset, stamp = names
    produced = rows[stamp].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() / 1e6
    return Events(rows[partition].to_numpy(), rows[offset].to_numpy(), produced)


def measure_append(settings: Settings, since: float, until: float) -> Latencies:
    """Of every event of both topics: from its timestamp to the commit that holds it."""
    found = []
    for side in SIDES:
        folder = Folder.at(f"{settings.root}/{side}")
        for version, at in commit_times(folder):
            commit = read_commit(folder, version)
            for file in commit.added if commit else []:
                events = events_of(folder.read(file.path), ("partition", "offset", "timestamp"))
                produced = events.produced[is_within(events.produced, since, until)]
                found.append(Latencies(produced, at - produced))
    return Latencies.of(found)


def measure_join(
    settings: Settings, topics: Mapping[str, str], join_type: str, since: float, until: float
) -> Latencies:
    seen, found = read_progress(settings.layout), []
    for side in ("accounts",) if join_type == "asof" else SIDES:
        rows = store.read_arrow(settings.layout, side, generation=GENERATION)
        events = events_of(rows, ("partition", "offset", "ts"))
        if join_type == "inner":
            events = events.take(_is_later_in_a_pair(settings.layout, side, rows))
        inside = events.take(is_within(events.produced, since, until))
        found.append(find_latencies(topics[side], inside, seen))
    return Latencies.of(found)


def _is_later_in_a_pair(layout: Layout, side: str, events: pa.Table) -> Numbers:
    """Return whether an event has completed a pair; of two with the same timestamp the account counts as the later."""
    pairs = store.read_arrow(layout, "joined", generation=GENERATION)
    users, accounts = (pairs[f"{name}Ts"].cast(pa.int64()).to_numpy() for name in ("user", "account"))
    is_later = users > accounts if side == "users" else accounts >= users
    name = side.removesuffix("s")
    keys = pack_positions(pairs[f"{name}Partition"], pairs[f"{name}Offset"])[is_later]
    return np.isin(pack_positions(events["partition"], events["offset"]), keys)


class Append:
    """The baseline, measured like a join."""

    def __init__(self, folder: Path, name: str, conf: Mapping[str, str] | None = None, heap: str | None = None) -> None:
        root, self.topics, self._conf = str(folder / name), topics_of(name), DELTA_CONF | dict(conf or {})
        self.settings = Settings(root=root, driver_memory=heap) if heap else Settings(root=root)

    def running(self, kafka: Mapping[str, str]) -> AbstractContextManager[Driver]:
        return running_append(self.settings, kafka, self.topics["users"], self.topics["accounts"], self._conf)

    def is_ready(self) -> bool:
        return all(has_commit(Folder.at(f"{self.settings.root}/{side}"), 1) for side in SIDES)

    def has_read(self, ends: Offsets) -> bool:
        tables = [DeltaTable(f"{self.settings.root}/{side}") for side in SIDES]
        rows = sum(pc.sum(pa.table(table.get_add_actions())["num_records"]).as_py() for table in tables)
        return bool(rows >= sum(sum(partitions.values()) for partitions in ends.values()))

    def measure(self, since: float, until: float) -> Latencies:
        return measure_append(self.settings, since, until)


class Join:
    def __init__(self, folder: Path, join_type: str, trigger_seconds: float = TRIGGER_SECONDS) -> None:
        self.settings = Settings(root=str(folder / join_type), trigger_seconds=trigger_seconds)
        self.topics = topics_of(join_type)
        self.join_type = join_type

    def running(self, kafka: Mapping[str, str]) -> AbstractContextManager[Driver]:
        return running_generation(self.settings, kafka, self.topics["users"], self.topics["accounts"], self.join_type)

    def is_ready(self) -> bool:
        return is_active(self.settings)

    def has_read(self, ends: Offsets) -> bool:
        progress = newest_progress(self.settings.layout, GENERATION)
        return bool(progress and progress.endOffsets and has_reached(offsets.from_json(progress.endOffsets), ends))

    def measure(self, since: float, until: float) -> Latencies:
        return measure_join(self.settings, self.topics, self.join_type, since, until)

    def batch_seconds(self) -> float:
        return statistics.median(row.batchMs for row in batches(self.settings.layout, GENERATION)) / 1000


def topics_of(name: str) -> dict[str, str]:
    return {side: f"{side}-{name}" for side in SIDES}


@dataclass(frozen=True)
class Measured:
    latencies: Latencies
    windows: list[Window]


def measure(kafka: dict[str, str], subject: Append | Join, seconds: float, pace: Pace) -> Measured:
    """Send events, let the subject warm up, and take the events of the time that follows."""
    bootstrap, topics = kafka["bootstrap.servers"], subject.topics
    people = max(1, int(pace.rate * seconds) // EVENTS_OF_A_PERSON)
    with subject.running(kafka) as driver:
        with flowing(bootstrap, topics["users"], topics["accounts"], pace.rate, people):
            driver.wait_for(subject.is_ready, "its first rows are visible", START_SECONDS)
            time.sleep(pace.warm_up)
            windows = list(watch(seconds))
        with TopicReader(kafka) as reader:
            ends = {topic: reader.bounds(topic)[1] for topic in topics.values()}
        driver.wait_for(lambda: subject.has_read(ends), "all events are visible", REST_SECONDS, every=1.0)
    latencies = subject.measure(windows[0].since, windows[-1].until)
    if not np.isfinite(latencies.seconds).all():
        raise SystemExit(f"{topics}: some of {len(latencies)} events were never visible")
    p50, p95 = (latencies.quantile(share) for share in (0.5, 0.95))
    tell(f"{', '.join(topics.values())}: {len(latencies)} events, p50 {p50:.2f} s, p95 {p95:.2f} s")
    return Measured(latencies, windows)


def watch(seconds: float) -> Iterator[Window]:
    """Let the time pass in windows, at least two, and see what others took in each."""
    count, since = max(2, round(seconds / WINDOW_SECONDS)), time.time()
    for _ in range(count):
        busy = read_processor_time()
        time.sleep(seconds / count)
        now = time.time()
        yield Window(since, now, stolen_share(busy, read_processor_time()) or 0.0)
        since = now


@dataclass(frozen=True)
class Pace:
    rate: int
    warm_up: float


def compare(folder: Path, kafka: dict[str, str], joins: Sequence[str], seconds: float, pace: Pace) -> Result:
    """Measure the append in the middle of the joins, so that a machine that gets slower hurts both."""
    subjects, slow_pace = [Join(folder, name) for name in joins], replace(pace, warm_up=2 * pace.warm_up)
    half = len(subjects) // 2
    found = [measure(kafka, subject, seconds, pace) for subject in subjects[:half]]
    floor = measure(kafka, Append(folder, "append"), seconds / 4, slow_pace)
    found += [measure(kafka, subject, seconds, pace) for subject in subjects[half:]]
    figures, facts = [], {"events a second": pace.rate, "seconds measured": seconds, "seconds of warm-up": pace.warm_up}
    for subject, measured in zip(subjects, found, strict=True):
        for label, (share, target) in TARGETS.items():
            ours, theirs = measured.latencies.quantile(share), floor.latencies.quantile(share)
            name = f"latency {label}, {subject.join_type}"
            figures.append(Figure(name, ours, theirs, "s", target, against="the append query's own latency"))
        p50 = measured.latencies.quantile(0.5)
        figures.append(Figure(f"latency p50, {subject.join_type}", p50, LIMIT_SECONDS, "s", 1.0, against="the limit"))
        facts |= {
            f"events counted, {subject.join_type}": len(measured.latencies),
            f"median seconds of a batch, {subject.join_type}": subject.batch_seconds(),
            f"p50 in the quieter and the busier half, {subject.join_type}": describe_halves(measured),
        }
    return figures, facts


def measure_plain(folder: Path, kafka: dict[str, str], seconds: float, rate: int) -> None:
    """Tell the latency of the append with the JVM that a user gives it, once it is steady."""
    measure(kafka, Append(folder, "plain", {JAVA_OPTIONS: ""}, PLAIN_HEAP), seconds, Pace(rate, STEADY_SECONDS))


def measure_at_once(folder: Path, kafka: dict[str, str], joins: Sequence[str], seconds: float, pace: Pace) -> None:
    """Tell the latency of joins whose batches begin as soon as the one before has ended."""
    for name in joins:
        subject = Join(folder, name, trigger_seconds=0)
        measured = measure(kafka, subject, seconds, pace)
        tell(f"{name}: {subject.batch_seconds():.2f} s for a batch; {describe_halves(measured)}")


def describe_halves(measured: Measured) -> str:
    halves = split_by_load(measured.latencies, measured.windows)
    return " and ".join(f"{half.p50:.2f} s (others took {half.stolen:.0%})" for half in halves)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="how long each join is measured")
    parser.add_argument("--warm-up", type=float, default=5, help="seconds before that; the append has twice as many")
    parser.add_argument("--rate", type=int, default=500, help="events of both topics a second")
    parser.add_argument("--joins", nargs="*", choices=JOIN_TYPES, default=list(JOIN_TYPES))
    parser.add_argument(
        "--plain", action="store_true", help="only the append, with the JVM that its user would give it"
    )
    parser.add_argument(
        "--at-once", action="store_true", help="only the joins, with SWITCHYARD_TRIGGER_SECONDS=0 instead of 1"
    )
    options = parser.parse_args()
    with running_broker() as (folder, kafka):
        pace = Pace(options.rate, options.warm_up)
        if options.at_once:
            measure_at_once(folder, kafka, options.joins, options.seconds, pace)
            return 0
        if options.plain:
            measure_plain(folder, kafka, options.seconds / 4, options.rate)
            return 0
        result = compare(folder, kafka, options.joins, options.seconds, pace)
    keep("latency", *result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
