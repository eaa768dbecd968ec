"""Whether a micro-batch takes longer, and the driver more memory, as the tables grow.

Two real drivers, submitted as Airflow would do it, read history from `earliest` with their own way for big batches. One
keeps a small history and is the baseline; the history of the other grows. At each size both get bursts of 5,000 events
in turns, half users and half accounts, of people drawn from their whole history, so that old rows must be found and,
for left, natural and asof, revised. Each burst is one micro-batch; its time is what `progress` says of it, and the
medians are compared. In turns, because the speed of a shared machine changes more within minutes than a batch does
between the sizes. Before the turns both get a few bursts of new people that are not counted.

A person has about four events, close together, however long the history is, so a burst makes about the same number of
rows at each size, and there are about as many joined rows as events: for left and inner half of these are users, for
natural and asof, which have one row for each user or account, nearly all are of that side.

The same is measured once more with few people: each has about two hundred events, so that an event of a burst makes
about a hundred rows, and a burst of 200 of them about twenty thousand.

Memory is what the JVM and the Python process of the driver have in RAM together, at each size. Each event is one row of
state. A size of less than eight times the small history counts for memory only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.drivers import GENERATION, running_generation
from bench.load import MOST_SECONDS, Load
from bench.measure import Figure, keep, tell
from bench.stage import Filler, running_broker
from switchyard import offsets
from switchyard.kafka.topics import TopicReader
from switchyard.layout import JOIN_TYPES
from switchyard.offsets import has_reached
from switchyard.settings import Settings

WARM_UP, MEASURED = 4, 7
FIRST_WARM_UP = 12
"""The baseline must not be the time of a JVM that is still compiling."""
REST_SECONDS = 0.5
"""What a driver still does after a batch is visible, such as its offsets, is not beside the next one of the other."""
NEIGHBOURS = 40_000
"""The people of so many events have all of them before the next ones have their first."""
USER_SHARE = {"left": 0.5, "inner": 0.5, "natural": 0.9, "asof": 0.1}
"""In the history: such a share gives about one joined row for each event."""
GROWTH_TARGET, MEMORY_TARGET = 1.3, 1.2
MEMORY_LIMIT_MIB = 2048
LEAST_GROWTH = 8


@dataclass(frozen=True)
class Shape:
    """How the events are spread over people, and how many of them are one burst."""

    events_of_a_person: int
    burst: int
    label: str = ""


MANY_PEOPLE = Shape(events_of_a_person=4, burst=5_000)
FEW_PEOPLE = Shape(events_of_a_person=200, burst=200, label=", few people")


@dataclass(frozen=True)
class Side:
    """A driver at one size: its rows, the median time of its bursts, and how many rows each of them made."""

    joined_rows: int
    batch_seconds: float
    rows_of_a_burst: int


@dataclass(frozen=True)
class Sample:
    """What was seen at one size; where growth counts, in turns with the small one."""

    events: int
    memory_mib: float
    sides: tuple[Side, Side] | None = None


@dataclass
class GrowingLoad(Load):
    """A driver, and what it was given so far."""

    filler: Filler
    shape: Shape
    people: int = 0

    @property
    def name(self) -> str:
        return self.join_type + self.shape.label

    def send_history(self, events: int) -> None:
        """Until so many events were sent; the driver reads them as they come."""
        while (left := events - self.filler.sent) > 0:
            self._send_new_people(min(left, NEIGHBOURS))

    def grow_to(self, events: int) -> None:
        self.send_history(events)
        self.wait_until_read(every=1.0)
        self.wait_until_active()
        tell(f"{self.name}: {events} events are read")

    def warm_up(self, bursts: int) -> None:
        """More history, in pieces of a burst that follow each other at once."""
        for _ in range(bursts):
            self._send_new_people(self.shape.burst)
            self._wait_until_planned()
        self.wait_until_read()

    def burst(self) -> list[float]:
        """Return the time of its batch; none when the trigger has cut it in two."""
        time.sleep(REST_SECONDS)
        last = self.last_batch()
        self.filler.send(range(self.people), 0.5, self.shape.burst)
        self.filler.flush()
        self.wait_until_read()
        return self.batch_seconds_since(last, self.shape.burst)

    def _send_new_people(self, events: int) -> None:
        """Send all events of new people; the people from before keep what they have."""
        people = range(self.people, self.people + max(1, events // self.shape.events_of_a_person))
        self.filler.send(people, USER_SHARE[self.join_type], events)
        self.people = people.stop
        self.filler.flush()

    def _wait_until_planned(self) -> None:
        """Until a micro-batch has begun that reads to the end of the topics."""
        ends, planned = self.ends(), Path(self.settings.layout.checkpoint(GENERATION)) / "offsets"

        def is_planned() -> bool:
            newest = max(int(path.name) for path in planned.iterdir() if path.name.isdigit())
            sources = map(offsets.from_json, (planned / str(newest)).read_text().splitlines()[2:])
            return has_reached({topic: reached for source in sources for topic, reached in source.items()}, ends)

        self.driver.wait_for(is_planned, "a batch takes the burst", MOST_SECONDS, every=0.1)


def measure(grown: GrowingLoad, small: GrowingLoad) -> tuple[Side, Side]:
    """Send bursts in turns, until both have enough that are one batch each."""
    loads = grown, small
    before = [(load.filler.sent, load.joined_rows()) for load in loads]
    times: list[list[float]] = [[], []]
    while min(map(len, times)) < MEASURED:
        for load, mine in zip(loads, times, strict=True):
            mine += load.burst()
    for name, mine in zip(("grown", "small"), times, strict=True):
        tell(f"{grown.name}, {name}: batches {', '.join(f'{seconds:.2f}' for seconds in mine)}")
    first, second = (describe_side(load, *was, mine) for load, was, mine in zip(loads, before, times, strict=True))
    return first, second


def describe_side(load: GrowingLoad, events: int, rows: int, times: Sequence[float]) -> Side:
    bursts, now = (load.filler.sent - events) // load.shape.burst, load.joined_rows()
    return Side(now, statistics.median(times), (now - rows) // bursts)


def describe(sample: Sample) -> str:
    sides = " in turns with ".join(map(describe_bursts, sample.sides or ()))
    return f"{sample.events} events, {sample.memory_mib:.0f} MiB" + (f"; {sides}" if sides else "")


def describe_bursts(side: Side) -> str:
    return f"{side.batch_seconds:.2f} s for {side.rows_of_a_burst} new rows at {side.joined_rows}"


@contextmanager
def loaded_driver(
    folder: Path, kafka: dict[str, str], join_type: str, shape: Shape, name: str
) -> Iterator[GrowingLoad]:
    settings = Settings(root=str(folder / name))
    topics = f"users-{name}", f"accounts-{name}"
    filler = Filler(kafka["bootstrap.servers"], *topics)
    with running_generation(settings, kafka, *topics, join_type) as driver, TopicReader(kafka) as reader:
        yield GrowingLoad(settings, join_type, driver, reader, topics, filler, shape)


def grow(small: GrowingLoad, grown: GrowingLoad, base: int, sizes: Sequence[int]) -> list[Sample]:
    """Grow one load from size to size; the small one stays as it is but for the bursts."""
    grown.send_history(min(sizes))
    small.grow_to(base)
    small.warm_up(FIRST_WARM_UP)
    samples: list[Sample] = []
    for events in sorted(sizes):
        grown.grow_to(events)
        grown.warm_up(WARM_UP if samples else FIRST_WARM_UP)
        sides = None
        if events >= LEAST_GROWTH * base:
            small.warm_up(WARM_UP)
            sides = measure(grown, small)
        samples.append(Sample(grown.filler.sent, grown.memory_mib(), sides))
        tell(f"{grown.name}: {describe(samples[-1])}")
    return samples


def judge(subject: str, samples: Sequence[Sample]) -> list[Figure]:
    """Each size against the small one in the same minutes; the memory of the largest against that of a tenth of it.

    The memory of a single size has the limit only.
    """
    figures = []
    for grown, small in (sample.sides for sample in samples if sample.sides):
        name, against = (f"{show_millions(side.joined_rows)} rows" for side in (grown, small))
        figures.append(
            Figure(
                f"growth, {subject}, a batch at {name}",
                grown.batch_seconds,
                small.batch_seconds,
                "s",
                GROWTH_TARGET,
                against=f"the same at {against}",
            )
        )
    last = samples[-1]
    tenth = min(samples, key=lambda sample: abs(sample.events - last.events / 10))
    name, memory = f"memory, {subject}, {show_millions(last.events)} rows of state", last.memory_mib
    if tenth is not last:
        against = f"the same with {show_millions(tenth.events)}"
        figures.append(Figure(name, memory, tenth.memory_mib, "MiB", MEMORY_TARGET, against=against))
    return [*figures, Figure(name, memory, MEMORY_LIMIT_MIB, "MiB", 1.0, against="the limit of 2 GiB")]


def show_millions(count: int) -> str:
    return f"{count / 1e6:.1f}M"


def measure_growth(
    join_type: str, shape: Shape, base: int, sizes: Sequence[int]
) -> tuple[list[Figure], dict[str, Any]]:
    with (
        running_broker() as (folder, kafka),
        loaded_driver(folder, kafka, join_type, shape, f"{join_type}-small") as small,
        loaded_driver(folder, kafka, join_type, shape, join_type) as grown,
    ):
        samples = grow(small, grown, base, sizes)
        stored = grown.stored_mb()
    name = grown.name
    facts: dict[str, Any] = {f"{name}, events in a batch": shape.burst}
    facts |= {f"{name}, at size {number}": describe(one) for number, one in enumerate(samples, 1)}
    facts[f"{name}, most memory at any time, MiB"] = round(grown.most_mib)
    for place, size in stored.items():
        facts[f"{name}, MB of a million events in the {place}"] = round(size / grown.filler.sent * 1e6)
    return judge(name, samples), facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = [1_000_000, 3_000_000, 10_000_000]
    parser.add_argument("--base", type=int, default=160_000, help="events of the history that stays small")
    parser.add_argument("--events", type=int, nargs="+", default=sizes, help="sizes of the history that grows")
    parser.add_argument("--joins", nargs="*", choices=JOIN_TYPES, default=["left"])
    parser.add_argument("--crowd", type=int, default=160_000, help="events of the history of few people that grows")
    parser.add_argument("--crowd-joins", nargs="*", choices=JOIN_TYPES, default=["left"])
    options = parser.parse_args()
    if len(options.events) < 2:
        parser.error("give two sizes or more: the memory of one is compared with that of the other")
    wanted = [(join_type, MANY_PEOPLE, options.base, options.events) for join_type in options.joins]
    base = options.crowd // LEAST_GROWTH
    wanted += [(join_type, FEW_PEOPLE, base, [options.crowd]) for join_type in options.crowd_joins]
    figures: list[Figure] = []
    facts: dict[str, Any] = {}
    for one in wanted:
        found, seen = measure_growth(*one)
        figures += found
        facts |= seen
    keep("growth", figures, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
