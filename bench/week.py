"""Whether the demo may run for a week: rows, disk, memory and the time of a small batch after so many days of it.

The demo's own generator makes the days by batch, as many events as its default rate gives, and a real driver with the
shipped settings reads them as they come, for the left join. Rows and disk of the second half are compared with those of
the first. A second driver keeps the first hour. At the end both get in turns what the demo sends in one second, and the
medians of these batches are compared: in turns, as the speed of a shared machine changes within minutes.

Not simulated: the moments of the events, which are all of now, and the commit of each second: the days are read in big
batches. What a day of small commits does to readers is measured by bench/maintenance.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.drivers import running_generation
from bench.load import Load
from bench.measure import Figure, keep, tell
from bench.stage import running_broker
from switchyard.kafka.demo import PIECE, RATE, DemoProducer
from switchyard.kafka.topics import TopicReader, ensure_topics
from switchyard.settings import Settings

JOIN_TYPE = "left"
HOUR, DAY = 3_600, 86_400
SECOND_OF_EVENTS = int(RATE)
WARM_UP, MEASURED = 15, 25
REST_SECONDS = 0.5
"""A driver still works after a batch is visible: the next batch of the other driver waits until that is over."""
LINEAR_TARGET, BATCH_TARGET, MEMORY_TARGET = 1.1, 1.3, 1.2
MOST_ROWS_PER_EVENT = 2.0
MEMORY_LIMIT_MIB = 2048


@dataclass(frozen=True)
class Stage:
    """What there is after so many events."""

    events: int
    rows: int
    tables_mb: float
    checkpoint_mb: float
    memory_mib: float

    def describe(self) -> str:
        return (
            f"{self.events} events, {self.rows} joined rows, {self.tables_mb:.0f} MB of tables, "
            f"{self.checkpoint_mb:.0f} MB of checkpoint, {self.memory_mib:.0f} MiB of memory"
        )


@dataclass
class DemoLoad(Load):
    producer: DemoProducer

    def grow_to(self, events: int) -> Stage:
        """Send what is missing; the driver reads it meanwhile."""
        while (left := events - self.producer.sent) > 0:
            self.producer.send(min(PIECE, left))
        self.producer.flush()
        self.wait_until_read(every=1.0)
        self.wait_until_active()
        stored = self.stored_mb()
        stage = Stage(events, self.joined_rows(), stored["tables"], stored["checkpoint"], self.memory_mib())
        tell(stage.describe())
        return stage

    def send_second(self) -> list[float]:
        """Return the time of the batch of one second of the demo; none when the trigger has cut it in two."""
        time.sleep(REST_SECONDS)
        last = self.last_batch()
        self.producer.send(SECOND_OF_EVENTS)
        self.producer.flush()
        self.wait_until_read()
        return self.batch_seconds_since(last, SECOND_OF_EVENTS)


@dataclass(frozen=True)
class Week:
    """The stages of the driver that grew, and the median times of a second's batch, beside that of the first hour."""

    hour: Stage
    half: Stage
    end: Stage
    batch_seconds: float
    hour_batch_seconds: float

    def judge(self) -> list[Figure]:
        days = f"{self.end.events / RATE / DAY:g} days"
        halves = [
            ("joined rows", self.half.rows, self.end.rows, "rows"),
            ("disk of the tables", self.half.tables_mb, self.end.tables_mb, "MB"),
            ("disk of the checkpoint", self.half.checkpoint_mb, self.end.checkpoint_mb, "MB"),
        ]
        name, memory = f"{days} of demo, memory", self.end.memory_mib
        return [
            Figure(
                f"{days} of demo, joined rows",
                self.end.rows,
                self.end.events,
                "rows",
                MOST_ROWS_PER_EVENT,
                against="one row for each event",
            ),
            *(
                Figure(f"{days} of demo, {what}", end - half, half, unit, LINEAR_TARGET, against="the first half")
                for what, half, end, unit in halves
            ),
            Figure(name, memory, self.half.memory_mib, "MiB", MEMORY_TARGET, against="after the first half"),
            Figure(name, memory, MEMORY_LIMIT_MIB, "MiB", 1.0, against="the limit of 2 GiB"),
            Figure(
                f"{days} of demo, a batch of one second",
                self.batch_seconds,
                self.hour_batch_seconds,
                "s",
                BATCH_TARGET,
                against="the same after the first hour",
            ),
        ]

    def describe(self) -> dict[str, Any]:
        million = self.end.events / 1e6
        return {
            "days simulated": round(self.end.events / RATE / DAY, 3),
            "events": self.end.events,
            "joined rows for each event": round(self.end.rows / self.end.events, 3),
            "MB of a million events in the tables": round(self.end.tables_mb / million),
            "MB of a million events in the checkpoint": round(self.end.checkpoint_mb / million),
            "after the first hour": self.hour.describe(),
            "after the first half": self.half.describe(),
            "at the end": self.end.describe(),
        }


@contextmanager
def loaded_driver(folder: Path, kafka: dict[str, str], name: str) -> Iterator[DemoLoad]:
    """A driver on topics with one partition, as `up` creates them."""
    settings, topics = Settings(root=str(folder / name)), (f"users-{name}", f"accounts-{name}")
    ensure_topics(kafka, topics, 1)
    producer = DemoProducer(kafka, *topics, seed=1)
    with running_generation(settings, kafka, *topics, JOIN_TYPE) as driver, TopicReader(kafka) as reader:
        yield DemoLoad(settings, JOIN_TYPE, driver, reader, topics, producer)


def measure_batches(loads: tuple[DemoLoad, DemoLoad]) -> list[float]:
    """Return the median time of a second's batch of each, in turns."""
    times: tuple[list[float], list[float]] = [], []
    for turn in range(WARM_UP + MEASURED):
        for load, mine in zip(loads, times, strict=True):
            seconds = load.send_second()
            mine += seconds if turn >= WARM_UP else []
    for mine in times:
        tell(f"batches: {', '.join(f'{seconds:.2f}' for seconds in mine)}")
    return [statistics.median(mine) for mine in times]


def measure(grown: DemoLoad, small: DemoLoad, events: int) -> Week:
    hour = int(HOUR * RATE)
    small.grow_to(hour)
    stages = [grown.grow_to(size) for size in (hour, events // 2, events)]
    return Week(*stages, *measure_batches((grown, small)))


def kafka_mb(folder: Path) -> float:
    """Return the megabytes of the broker's log of the topics that grew."""
    logs = [path for path in folder.rglob("*.log") if path.parent.name.startswith(("users-days", "accounts-days"))]
    return sum(path.stat().st_size for path in logs) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=7.0, help="how many days of the demo (default 7; at least 0.1)")
    options = parser.parse_args()
    events = int(options.days * DAY * RATE)
    if options.days < 0.1:
        parser.error("--days: an hour is the baseline, so give 0.1 or more")
    with (
        running_broker() as (folder, kafka),
        loaded_driver(folder, kafka, "hour") as small,
        loaded_driver(folder, kafka, "days") as grown,
    ):
        began = time.monotonic()
        week = measure(grown, small, events)
        facts = {
            **week.describe(),
            "MB of a million events in the broker": round(kafka_mb(folder) / events * 1e6),
            "most memory at any time, MiB": round(grown.most_mib),
            "minutes from the first event to the last batch": round((time.monotonic() - began) / 60, 1),
        }
    keep("week", week.judge(), facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
