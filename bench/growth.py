"""Whether a micro-batch takes longer, and the driver more memory, as the tables grow.

A real driver, submitted as Airflow would do it, reads history from `earliest` with its own way for big batches. At each
size it gets bursts of 5,000 events, half users and half accounts, of people drawn from the whole history, so that old
rows must be found and, for left, natural and asof, revised. Each burst is one micro-batch; its time is what `progress`
says of it, and the median counts. The first ones at each size, and more of them at the first, are left out: they come
one right after the other, a measured one when nothing else is to be done.

A person has about four events, close together, however long the history is, so a burst makes the same number of rows at
each size, and there are about as many joined rows as events: for left and inner half of these are users, for natural
and asof, which have one row for each user or account, nearly all are of that side.

Memory is what the JVM and the Python process of the driver have in RAM together after the bursts. Each event is one
row of state.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
import pyarrow.compute as pc

from bench.drivers import GENERATION, Driver, is_active, resident_bytes, running_generation
from bench.measure import Figure, keep, tell
from bench.stage import Filler, running_broker
from switchyard import offsets
from switchyard.kafka.topics import TopicReader
from switchyard.layout import JOIN_TYPES
from switchyard.offsets import Offsets, has_reached
from switchyard.settings import Settings
from switchyard.tables import store
from switchyard.tables.progress import batches, newest_progress

BURST = 5_000
WARM_UP, MEASURED = 4, 7
FIRST_WARM_UP = 12
"""The baseline must not be the time of a JVM that is still compiling."""
EVENTS_OF_A_PERSON = 4
NEIGHBOURS = 10_000
"""So many people have all their events of the history before the next ones have their first."""
USER_SHARE = {"left": 0.5, "inner": 0.5, "natural": 0.9, "asof": 0.1}
"""In the history: such a share gives about one joined row for each event."""
GROWTH_TARGET, MEMORY_TARGET = 1.3, 1.2
MEMORY_LIMIT_MIB = 2048
MOST_SECONDS = 900


@dataclass(frozen=True)
class Sample:
    """What was seen at one size."""

    events: int
    joined_rows: int
    batch_seconds: float
    memory_mib: float


@dataclass
class Load:
    """A driver, and what it was given so far."""

    settings: Settings
    join_type: str
    driver: Driver
    filler: Filler
    reader: TopicReader
    topics: tuple[str, str]
    people: int = 0
    most_mib: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    def grow_to(self, events: int) -> None:
        """New people, each with all their events: who was there before keeps what they have."""
        new, began = events - self.filler.sent, time.monotonic()
        while (left := events - self.filler.sent) > 0:
            sent = min(left, NEIGHBOURS * EVENTS_OF_A_PERSON)
            people = range(self.people, self.people + max(1, sent // EVENTS_OF_A_PERSON))
            self.filler.send(people, USER_SHARE[self.join_type], sent)
            self.people = people.stop
        self.filler.flush()
        self._wait_until_read(every=1.0)
        self.driver.wait_for(lambda: is_active(self.settings), "the flip", MOST_SECONDS)
        tell(f"{self.join_type}: {events} events are read, {new / (time.monotonic() - began):.0f} a second")

    def measure(self) -> Sample:
        last, warm_up = self._last_batch(), WARM_UP if self.samples else FIRST_WARM_UP
        while len(times := self._burst_times(last)) < warm_up + MEASURED:
            self.filler.send(range(self.people), 0.5, BURST)
            self.filler.flush()
            if len(times) < warm_up:
                self._wait_until_planned()
            else:
                self._wait_until_read()
        table = store.open_table(self.settings.layout, "joined")
        rows = int(pc.sum(pa.table(table.get_add_actions())["num_records"]).as_py())
        sample = Sample(self.filler.sent, rows, statistics.median(times[warm_up:]), self.memory_mib())
        tell(f"{self.join_type}: {describe(sample)}, batches {', '.join(f'{time:.2f}' for time in times)}")
        self.samples.append(sample)
        return sample

    def memory_mib(self) -> float:
        python = int(self.settings.workspace.driver_pid(GENERATION).read_text())
        now = sum(map(resident_bytes, (self.driver.process.pid, python))) / 2**20
        self.most_mib = max(self.most_mib, now)
        return now

    def _last_batch(self) -> int:
        progress = newest_progress(self.settings.layout, GENERATION)
        return progress.batchId if progress else -1

    def _burst_times(self, after: int) -> list[float]:
        """Of micro-batches that took a whole burst; one may be cut in two by the trigger."""
        done = batches(self.settings.layout, GENERATION)
        return [row.batchMs / 1000 for row in done if row.batchId > after and row.inputRows == BURST]

    def _wait_until_planned(self) -> None:
        """Until a micro-batch has begun that reads to the end of the topics."""
        ends, planned = self._ends(), Path(self.settings.layout.checkpoint(GENERATION)) / "offsets"

        def is_planned() -> bool:
            newest = max(int(path.name) for path in planned.iterdir() if path.name.isdigit())
            sources = map(offsets.from_json, (planned / str(newest)).read_text().splitlines()[2:])
            return has_reached({topic: reached for source in sources for topic, reached in source.items()}, ends)

        self.driver.wait_for(is_planned, "a batch takes the burst", MOST_SECONDS, every=0.1)

    def _ends(self) -> Offsets:
        return {topic: self.reader.bounds(topic)[1] for topic in self.topics}

    def _wait_until_read(self, every: float = 0.2) -> None:
        ends = self._ends()

        def is_read() -> bool:
            if self.settings.workspace.driver_pid(GENERATION).exists():
                self.memory_mib()
            progress = newest_progress(self.settings.layout, GENERATION)
            return bool(progress and progress.endOffsets and has_reached(offsets.from_json(progress.endOffsets), ends))

        self.driver.wait_for(is_read, "all events are read", MOST_SECONDS, every)


def describe(sample: Sample) -> str:
    return (
        f"{sample.events} events, {sample.joined_rows} joined rows: {sample.batch_seconds:.2f} s a batch, "
        f"{sample.memory_mib:.0f} MiB"
    )


def grow(folder: Path, kafka: dict[str, str], join_type: str, sizes: Sequence[int]) -> Load:
    settings = Settings(root=str(folder / join_type))
    topics = f"users-{join_type}", f"accounts-{join_type}"
    filler = Filler(kafka["bootstrap.servers"], *topics)
    with running_generation(settings, kafka, *topics, join_type) as driver, TopicReader(kafka) as reader:
        load = Load(settings, join_type, driver, filler, reader, topics)
        for events in sorted(sizes):
            load.grow_to(events)
            load.measure()
        return load


def judge(join_type: str, samples: Sequence[Sample]) -> list[Figure]:
    """Each size against the first; the memory of the largest against that of a tenth of it."""
    first, *others, last = samples
    figures = []
    for sample in (*others, last):
        if sample.joined_rows >= 3 * first.joined_rows:
            name, against = (f"{one.joined_rows / 1e6:.1f}M rows" for one in (sample, first))
            figures.append(
                Figure(
                    f"growth, {join_type}, a batch at {name}",
                    sample.batch_seconds,
                    first.batch_seconds,
                    "s",
                    GROWTH_TARGET,
                    against=f"the same at {against}",
                )
            )
    tenth = min(samples, key=lambda sample: abs(sample.events - last.events / 10))
    name = f"memory, {join_type}, {last.events / 1e6:.1f}M rows of state"
    against = f"the same with {tenth.events / 1e6:.1f}M"
    memory = last.memory_mib
    return [
        *figures,
        Figure(name, memory, tenth.memory_mib, "MiB", MEMORY_TARGET, against=against),
        Figure(name, memory, MEMORY_LIMIT_MIB, "MiB", 1.0, against="the limit of 2 GiB"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = [300_000, 1_000_000, 3_000_000, 10_000_000]
    parser.add_argument("--events", type=int, nargs="+", default=sizes, help="sizes of the history")
    parser.add_argument("--joins", nargs="*", choices=JOIN_TYPES, default=["left"])
    options = parser.parse_args()
    if len(options.events) < 2:
        parser.error("give two sizes or more: one is compared with the other")
    figures: list[Figure] = []
    facts: dict[str, Any] = {"events in a batch": BURST}
    for join_type in options.joins:
        with running_broker() as (folder, kafka):
            load = grow(folder, kafka, join_type, options.events)
        figures += judge(join_type, load.samples)
        facts |= {f"{join_type}, at size {number}": describe(one) for number, one in enumerate(load.samples, 1)}
        facts[f"{join_type}, most memory at any time, MiB"] = round(load.most_mib)
    keep("growth", figures, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
