"""What the data gate costs before a flip, beside the reading and joining of the rows that it stands for.

For each size a real driver with the shipped settings reads a history from `earliest` for the left join: people with
many events on both sides, so that a user's event makes about twenty rows. Then one person alone has
5,000 events in each topic, which are 25 million rows. Reading and joining are what `progress` says of the batches; the
gate is the time from the last of them to READY. The memory is the most that the JVM and the Python process of the
driver have in RAM together, from the start to the flip.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.drivers import GENERATION, running_generation
from bench.load import Load
from bench.measure import Figure, keep, tell
from bench.stage import Filler, running_broker
from switchyard.kafka.topics import TopicReader
from switchyard.settings import Settings
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables.progress import batches

JOIN_TYPE = "left"
ROWS_OF_A_USER = 20
SHARE_TARGET, SIZE_TARGET = 0.2, 2.0
MEMORY_LIMIT_MIB = 2048


@dataclass(frozen=True)
class History:
    """As many users' as accounts' events, of so many people."""

    events: int
    people: int

    @staticmethod
    def of_many(rows: int) -> History:
        return History(2 * rows // ROWS_OF_A_USER, rows // ROWS_OF_A_USER**2)


@dataclass(frozen=True)
class Sample:
    rows: int
    stream_seconds: float
    gate_seconds: float
    most_mib: float
    proof: str

    @property
    def size(self) -> str:
        return f"{self.rows / 1e6:.1f}M joined rows"

    def describe(self) -> str:
        return (
            f"{self.rows} joined rows, {self.stream_seconds:.1f} s to read and join, "
            f"{self.gate_seconds:.1f} s of gate, {self.most_mib:.0f} MiB; {self.proof}"
        )


def measure(folder: Path, kafka: dict[str, str], name: str, history: History) -> Sample:
    settings, topics = Settings(root=str(folder / name)), (f"users-{name}", f"accounts-{name}")
    filler = Filler(kafka["bootstrap.servers"], *topics)
    filler.send(range(history.people), 0.5, history.events)
    filler.flush()
    with running_generation(settings, kafka, *topics, JOIN_TYPE) as driver, TopicReader(kafka) as reader:
        load = Load(settings, JOIN_TYPE, driver, reader, topics)
        load.wait_until_read()
        load.wait_until_active()
        sample = read_sample(settings, load)
    tell(f"{name}: {sample.describe()}")
    return sample


def read_sample(settings: Settings, load: Load) -> Sample:
    ready = next(entry for entry in HistoryStore(settings.layout).ledger().entries if entry.event is Event.READY)
    done = [row for row in batches(settings.layout, GENERATION) if row.at < ready.at]
    gate = (ready.at - max(row.at for row in done)).total_seconds()
    return Sample(load.joined_rows(), sum(row.batchMs for row in done) / 1000, gate, load.most_mib, ready.detail)


def judge(many: list[Sample], one: Sample) -> list[Figure]:
    small, *larger = many
    against = "reading and joining"
    shares = [
        Figure("gate, one person", one.gate_seconds, one.stream_seconds, "s", SHARE_TARGET, against=against),
        *(
            Figure(f"gate, {of.size}", of.gate_seconds, of.stream_seconds, "s", SHARE_TARGET, against=against)
            for of in many
        ),
    ]
    sizes = [
        Figure(
            f"gate, {of.size}", of.gate_seconds, small.gate_seconds, "s", SIZE_TARGET, against=f"that of {small.size}"
        )
        for of in larger
    ]
    most = max(of.most_mib for of in [*many, one])
    return [*shares, *sizes, Figure("gate, memory", most, MEMORY_LIMIT_MIB, "MiB", 1.0, against="the limit of 2 GiB")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1_000_000, 10_000_000], help="sizes, the smallest first"
    )
    parser.add_argument("--hot", type=int, default=5_000, help="events of the one person, in each topic")
    options = parser.parse_args()
    with running_broker() as (folder, kafka):
        many = [measure(folder, kafka, f"many-{rows}", History.of_many(rows)) for rows in options.rows]
        one = measure(folder, kafka, "one", History(2 * options.hot, people=1))
    facts = {f"of many people, at size {number}": of.describe() for number, of in enumerate(many, 1)}
    keep("gate", judge(many, one), facts | {"of one person": one.describe()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
