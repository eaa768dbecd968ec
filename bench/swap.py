"""What a swap costs: from the command to the flip, and to the first row that a reader sees of the new generation.

Side by side in the same run, on the same machine and beside the same running stack: the bare cost (spark-submit of the
same job to its first committed batch) and the way without Switchyard (stop the job, submit it with other topics), with
the gap that readers see. Events flow to old and new topics and a reader reads `final_ui` all the time. A swap with a
spare driver begins when a spare is ready, and that spare is not replaced as long as something else is measured.

Every command comes at a random moment. Each swap with a spare is rolled back while the old generation lingers, by the
command line; that is timed from the start of its process. How soon a command is REQUESTED is told of all swaps.

A swap to a crowd, a history of few people with a million joined rows, reads all of it from `earliest` and passes the
data gate before its flip. Its baseline is a bare job that reads the same until its first batch, which has all of it.

It goes round by round, a swap with a spare and back, a bare job, a swap without, a bare job and a swap to the crowd:
with `--minutes` there is one of each, and more of them, up to their numbers, while there is time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.drivers import PLAIN_HEAP
from bench.measure import Figure, keep, quantile, tell
from bench.stage import Filler
from switchyard.drivers.jars import spark_jars
from switchyard.drivers.java import find_java
from switchyard.drivers.jobs import submit_command
from switchyard.drivers.running_drivers import list_spares
from switchyard.drivers.submission import spark_conf, submit_arguments, submit_environment
from switchyard.kafka.client_settings import write_properties
from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import ensure_topics
from switchyard.layout import Layout
from switchyard.local import loopback
from switchyard.local.airflow_api import AirflowApi
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap.history import ROLLBACK_PREFIX
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.progress import newest_progress
from switchyard.tables.stable_names import newest_rows
from tests.integration.traffic import Traffic, running_traffic

Bare = tuple[float, float | None]
AGAINST = "a plain spark-submit to its first committed batch"
AGAINST_CROWD = "a plain spark-submit that reads the same from earliest"
COLD_TARGET, SPARE_TARGET, SLOW_SPARE_TARGET = 0.7, 0.12, 0.2
REQUESTED_LIMIT, SLOW_REQUESTED_LIMIT, ROLLBACK_LIMIT = 1.0, 2.0, 1.0
"""Seconds"""
CROWD_TARGET = 1.1
"""What a cold swap may take, and a fifth for the data gate."""
PAIRS = [("users", "accounts"), ("users-b", "accounts-b")]
CROWD_PAIR = ("users-crowd", "accounts-crowd")
CROWD_PEOPLE, CROWD_EVENTS = 100, 20_000
"""Each has about a hundred events on either side."""
SPARE, COLD, BARE, CROWD = "with a spare", "cold", "bare", "to a crowd"
BARE_CROWD = "bare job that reads the crowd"
SPARE_DAG = "switchyard_spare"
MOST_SECONDS = 240.0
LINGER_SECONDS = 10
"""The next swap begins when the old generation has retired."""
MOST_PAUSE_SECONDS = 10
"""Before each command, so that it comes at any moment of the minute's runs"""
DOWN_SECONDS = 20
"""What it takes to stop the stack."""
RESUBMISSION = 4
"""Only with time for so many bare jobs is one stopped and submitted again: swaps come first."""


def wait_for(look: Callable[[], Any], what: str, every_seconds: float = 0.5) -> Any:
    deadline = time.monotonic() + MOST_SECONDS
    while time.monotonic() < deadline:
        if seen := look():
            return seen
        time.sleep(every_seconds)
    raise SystemExit(f"gave up waiting for {what}")


@dataclass
class Reader:
    """Reads the newest rows of `final_ui` twice a second, and notes when each generation was first seen."""

    layout: Layout
    first_seen: dict[int, datetime] = field(default_factory=dict)
    longest_gap: float = 0.0
    """Longest time in which reads failed or gave no rows"""
    errors: int = 0

    def read(self, stop: threading.Event) -> None:
        empty_since: float | None = None
        while not stop.wait(0.5):
            began = time.monotonic()
            rows = self._read_newest()
            if rows:
                self.first_seen.setdefault(rows[-1]["generation"], datetime.now(UTC))
                if empty_since is not None:
                    self.longest_gap = max(self.longest_gap, time.monotonic() - empty_since)
                empty_since = None
            elif self.first_seen and empty_since is None:
                empty_since = began

    def _read_newest(self) -> list[dict[str, Any]]:
        try:
            return newest_rows(self.layout, "final_ui", 1)
        except Exception:
            self.errors += 1
            return []


def build_environment(settings: Settings, spare: bool = False) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")} | {
        "SWITCHYARD_ROOT": settings.root,
        "SWITCHYARD_AIRFLOW_PORT": str(settings.airflow_port),
        "SWITCHYARD_KAFKA_PORT": str(settings.kafka_port),
        "SWITCHYARD_SPARE": str(spare),
        "SWITCHYARD_LINGER_SECONDS": str(LINGER_SECONDS),
    }


def run_command(environment: Mapping[str, str], *arguments: str) -> None:
    command = str(Path(sys.executable).with_name("switchyard"))
    subprocess.run([command, *arguments], env=environment, check=True)


@contextmanager
def running_stack(settings: Settings, spare: bool = False) -> Iterator[None]:
    environment = build_environment(settings, spare)
    run_command(environment, "up", "--detach", "--no-demo")
    try:
        yield
    finally:
        run_command(environment, "down")


def rehearse(settings: Settings) -> None:
    """A dry run: the first command that a new broker and a new Airflow get takes seconds longer than any other."""
    send(settings, "rehearsal", *PAIRS[1], dryRun=True)
    wait_for(lambda: HistoryStore(settings.layout).ledger().outcomes.get("rehearsal"), "the rehearsal")


def send(settings: Settings, swap_id: str, users: str, accounts: str, **more: object) -> None:
    command = {"usersTopic": users, "accountsTopic": accounts, "joinType": "inner", "id": swap_id, **more}
    kafka = {"bootstrap.servers": settings.bootstrap}
    publish(kafka, settings.control_topic, json.dumps(command).encode(), "cli:bench")


def swap_once(settings: Settings, reader: Reader, swap_id: str, number: int, to_crowd: bool = False) -> dict[str, Any]:
    """One swap to the other pair of topics; returns its seconds."""
    history = HistoryStore(settings.layout)
    active = history.status_row().target
    other = PAIRS[1] if active and active.usersTopic == PAIRS[0][0] else PAIRS[0]
    users, accounts = CROWD_PAIR if to_crowd else other
    began = datetime.now(UTC)
    send(settings, swap_id, users, accounts, **({"start": "earliest"} if to_crowd else {}))
    outcome = wait_for(lambda: history.ledger().outcomes.get(swap_id), f"swap {number}")
    if outcome.event != "APPLIED":
        raise SystemExit(f"swap {number} is {outcome.event}: {outcome.detail}")
    generation = outcome.generation
    flipped = history.status_row().lastApplied
    wait_for(lambda: generation in reader.first_seen, "the first row of the new generation")
    entries = [entry for entry in history.ledger().entries if entry.swapId == swap_id]
    requested = next(entry.at for entry in entries if entry.event == "REQUESTED")
    return {
        "generation": generation,
        "usersTopic": users,
        "requested": (requested - began).total_seconds(),
        "flip": (flipped - began).total_seconds(),
        "firstRow": (reader.first_seen[generation] - began).total_seconds(),
        "steps": ", ".join(f"{entry.event} {(entry.at - began).total_seconds():.1f}" for entry in entries),
    }


def roll_back(settings: Settings, name: str) -> float:
    """Return the seconds from the start of the command to the flip back to the lingering generation."""
    history = HistoryStore(settings.layout)
    began = datetime.now(UTC)
    run_command(build_environment(settings), "rollback", "--id", name)
    outcome = wait_for(lambda: history.ledger().outcomes.get(ROLLBACK_PREFIX + name), name, 0.1)
    if outcome.event != "APPLIED":
        raise SystemExit(f"{name} is {outcome.event}: {outcome.detail}")
    return (history.status_row().lastApplied - began).total_seconds()


def wait_until_retired(settings: Settings) -> None:
    history = HistoryStore(settings.layout)
    wait_for(lambda: not history.ledger().lingering, "the old generation to retire")


@contextmanager
def bare_job(
    settings: Settings, kafka: Path, generation: int, pair: tuple[str, str], start: str = "latest"
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job itself, without Switchyard around it: a plain spark-submit, with Spark's default heap and the JVM's
    default options, without the class archive of set-up."""
    arguments = submit_arguments(generation, Target(*pair, "inner"), start, kafka)
    environment = {**os.environ, **submit_environment(os.environ, Path(sys.executable), find_java().path)}
    environment |= {"SWITCHYARD_ROOT": settings.root, "SWITCHYARD_KAFKA_PORT": str(settings.kafka_port)}
    process = subprocess.Popen(
        submit_command(settings, "stream_generation.py", arguments, spark_conf(settings.spark_master, spark_jars())),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def first_batch(settings: Settings, generation: int) -> bool:
    progress = newest_progress(settings.layout, generation)
    return progress is not None and progress.batchId >= 0


def measure_bare(stack: Settings, folder: Path, number: int, may_resubmit: Callable[[float], bool]) -> list[Bare]:
    """Return the seconds from spark-submit to the first batch, and from stopping a job to the next one's first batch.

    The second is measured only if it may be, given the seconds of the first; its job is one more of the first kind.
    """
    settings, kafka = prepare_bare(stack, folder, f"bare-{number}")
    began = time.monotonic()
    with bare_job(settings, kafka, 1, PAIRS[0]):
        wait_for(lambda: first_batch(settings, 1), "the bare job's first batch")
        bare = time.monotonic() - began
        if not may_resubmit(bare):
            return [(bare, None)]
        pid = int(settings.workspace.driver_pid(1).read_text())
        stopped = time.monotonic()
        os.kill(pid, 15)
        wait_for(lambda: not settings.workspace.driver_pid(1).exists(), "the bare job to stop")
    resubmitted = time.monotonic()
    with bare_job(settings, kafka, 2, PAIRS[1]):
        wait_for(lambda: first_batch(settings, 2), "the resubmitted job's first batch")
        now = time.monotonic()
    return [(bare, now - stopped), (now - resubmitted, None)]


def prepare_bare(stack: Settings, folder: Path, name: str) -> tuple[Settings, Path]:
    kafka = folder / "kafka.properties"
    write_properties(kafka, {"bootstrap.servers": stack.bootstrap})
    return Settings(root=str(folder / name), kafka_port=stack.kafka_port, driver_memory=PLAIN_HEAP), kafka


def measure_bare_crowd(stack: Settings, folder: Path, number: int) -> float:
    """Return the seconds from spark-submit to the first committed batch, which has the whole history of the crowd."""
    settings, kafka = prepare_bare(stack, folder, f"bare-crowd-{number}")
    began = time.monotonic()
    with bare_job(settings, kafka, 1, CROWD_PAIR, "earliest"):
        wait_for(lambda: first_batch(settings, 1), "the whole history of the crowd")
        return time.monotonic() - began


def count_rows(layout: Layout, generation: int) -> int:
    files = pa.table(store.open_table(layout, "joined").get_add_actions(flatten=True))
    mine = files.filter(pc.equal(files["partition.generation"], generation))
    return int(pc.sum(mine["num_records"]).as_py())


def order_steps(wanted: Mapping[str, int]) -> Iterator[str]:
    """Return kinds of steps, each as often as wanted, round by round."""
    for number in range(max(wanted.values())):
        yield from (kind for kind, count in wanted.items() if number < count)


@dataclass
class Clock:
    """Whether there is time for one more step. The first of each kind is made whatever it takes."""

    most_seconds: float
    read: Callable[[], float] = time.monotonic
    longest: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began = self.read()

    def has(self, seconds: float) -> bool:
        return self.read() - self._began + seconds + DOWN_SECONDS <= self.most_seconds

    def allows(self, kind: str) -> bool:
        return kind not in self.longest or self.has(self.longest[kind])

    @contextmanager
    def timing(self, kind: str) -> Iterator[None]:
        began = self.read()
        yield
        self.longest[kind] = max(self.read() - began, self.longest.get(kind, 0.0))


def run(wanted: Mapping[str, int], clock: Clock) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        settings = Settings(
            root=str(Path(name) / "root"), airflow_port=loopback.pick_free_port(), kafka_port=loopback.pick_free_port()
        )
        with beside_traffic(settings, spare=wanted[SPARE] > 0) as (traffic, reader):
            measurement = Measurement(settings, Path(name), traffic, reader, clock)
            rehearse(settings)
            if wanted[SPARE]:
                measurement.wait_for_spare()
            for kind in order_steps(wanted):
                if clock.allows(kind):
                    with clock.timing(kind):
                        measurement.take(kind, wanted)
            return measurement.summarise()


@contextmanager
def beside_traffic(settings: Settings, spare: bool = False) -> Iterator[tuple[Traffic, Reader]]:
    """A running stack whose topics get events and whose rows are read all the time."""
    with running_stack(settings, spare):
        ensure_topics({"bootstrap.servers": settings.bootstrap}, [topic for pair in PAIRS for topic in pair], 2)
        crowd = Filler(settings.bootstrap, *CROWD_PAIR)
        crowd.send(range(CROWD_PEOPLE), 0.5, CROWD_EVENTS)
        crowd.flush()
        reader, stop = Reader(settings.layout), threading.Event()
        thread = threading.Thread(target=reader.read, args=(stop,))
        with running_traffic(settings.layout, settings.bootstrap, [*PAIRS, CROWD_PAIR], with_reader=False) as traffic:
            thread.start()
            try:
                wait_for(lambda: reader.first_seen, "the first rows")
                yield traffic, reader
            finally:
                stop.set()
                thread.join()


@dataclass
class Measurement:
    """What was measured beside one running stack."""

    settings: Settings
    folder: Path
    traffic: Traffic
    reader: Reader
    clock: Clock
    done: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The swaps of each kind"""
    bare: list[Bare] = field(default_factory=list)
    bare_crowd: list[float] = field(default_factory=list)
    rollbacks: list[float] = field(default_factory=list)
    crowd_rows: int = 0
    lost: int = 0

    def take(self, kind: str, wanted: Mapping[str, int]) -> None:
        if kind == BARE:
            self._run_bare(wanted[BARE])
        elif kind == BARE_CROWD:
            self.bare_crowd.append(measure_bare_crowd(self.settings, self.folder, len(self.bare_crowd)))
            tell(f"{BARE_CROWD} {self.bare_crowd[-1]:.1f} s")
        else:
            if kind == SPARE:
                self.wait_for_spare()
            self._swap(kind, len(self.done.get(kind, [])))

    def wait_for_spare(self) -> None:
        """The spare that is ready then is the last one until the next wait."""
        airflow = AirflowApi.of(self.settings)
        airflow.set_paused(SPARE_DAG, False)
        wait_for(lambda: any(spare.is_ready for spare in list_spares(self.settings.workspace)), "a spare driver")
        airflow.set_paused(SPARE_DAG, True)

    def _swap(self, kind: str, number: int) -> None:
        to_crowd = kind == CROWD
        time.sleep(random.uniform(0, MOST_PAUSE_SECONDS))
        swap = swap_once(self.settings, self.reader, f"{kind}-{number}".replace(" ", "-"), number, to_crowd)
        self.done.setdefault(kind, []).append(swap)
        until = datetime.now(UTC)
        if kind == SPARE:
            self.rollbacks.append(roll_back(self.settings, f"back-{number}"))
        wait_until_retired(self.settings)
        self.lost += count_lost(self.traffic, swap, until)
        if to_crowd:
            self.crowd_rows = count_rows(self.settings.layout, swap["generation"])
        seconds = f"flip {swap['flip']:.1f} s, first row {swap['firstRow']:.1f} s"
        if kind == SPARE:
            seconds += f", back {self.rollbacks[-1]:.1f} s"
        tell(f"swap {number + 1}, {kind}: {seconds}; {swap['steps']}")

    def _run_bare(self, wanted: int) -> None:
        """Once more, unless there are as many as wanted; the first, if more are wanted, with a resubmission."""
        if len(self.bare) < wanted:
            is_first = not self.bare and wanted > 1
            found = measure_bare(
                self.settings,
                self.folder,
                len(self.bare),
                lambda cost: is_first and self.clock.has(RESUBMISSION * cost),
            )
            for cost, gap in found:
                tell(f"bare job {cost:.1f} s" + (f", stop and resubmit {gap:.1f} s" if gap else ""))
            self.bare += found

    def summarise(self) -> dict[str, Any]:
        costs, gaps = [cost for cost, _ in self.bare], [gap for _, gap in self.bare if gap is not None]
        result: dict[str, Any] = {}
        for kind, swaps in self.done.items():
            flips, rows = [swap["flip"] for swap in swaps], [swap["firstRow"] for swap in swaps]
            result |= {
                f"swaps, {kind}": len(swaps),
                f"flip, {kind}, median seconds": round(statistics.median(flips), 2),
                f"flip, {kind}, p95 seconds": round(quantile(flips, 0.95), 2),
                f"first row, {kind}, median seconds": round(statistics.median(rows), 2),
                f"first row, {kind}, p95 seconds": round(quantile(rows, 0.95), 2),
            }
        requested = [swap["requested"] for swaps in self.done.values() for swap in swaps]
        for name, values in {"requested": requested, "rollback": self.rollbacks}.items():
            if values:
                result[f"{name}, count"] = len(values)
                result[f"{name}, median seconds"] = round(statistics.median(values), 2)
                result[f"{name}, p95 seconds"] = round(quantile(values, 0.95), 2)
        if self.bare_crowd:
            result[f"{BARE_CROWD}, median seconds"] = round(statistics.median(self.bare_crowd), 2)
            result["joined rows of the crowd"] = self.crowd_rows
        if gaps:
            result["gap of stop and resubmit, seconds"] = round(max(gaps), 2)
        return result | {
            "bare jobs": len(costs),
            "bare job, median seconds": round(statistics.median(costs), 2),
            "bare job, worst seconds": round(max(costs), 2),
            "gap of readers, seconds": round(self.reader.longest_gap, 2),
            "reads that failed": self.reader.errors + len(self.traffic.read_errors),
            "events lost": self.lost,
            "events sent": len(self.traffic.delivered),
        }


def count_lost(traffic: Traffic, swap: dict[str, Any], until: datetime) -> int:
    """Return events before a moment that never came into the new generation; those on their way get time to arrive."""
    deadline = time.monotonic() + 60
    while lost := traffic.find_lost(swap["generation"], swap["usersTopic"], until):
        if time.monotonic() > deadline:
            return len(lost)
        time.sleep(1)
    return 0


def judge(result: dict[str, Any]) -> list[Figure]:
    """Return what was measured of swaps, each against its bare job, and of commands against their limits."""
    plain, crowd = ("bare job, median seconds", AGAINST), (f"{BARE_CROWD}, median seconds", AGAINST_CROWD)
    wanted = {
        "swap, cold": (COLD, COLD_TARGET, *plain),
        "swap with a spare": (SPARE, SPARE_TARGET, *plain),
        "swap from earliest, few people": (CROWD, CROWD_TARGET, *crowd),
    }
    figures = [
        Figure(name, result[f"flip, {kind}, median seconds"], result[bare], "s", target, against=against)
        for name, (kind, target, bare, against) in wanted.items()
        if f"swaps, {kind}" in result
    ]
    slow = f"flip, {SPARE}, p95 seconds"
    if slow in result:
        figures.append(
            Figure("swap with a spare, p95", result[slow], result[plain[0]], "s", SLOW_SPARE_TARGET, against=AGAINST)
        )
    limits = {
        "command to REQUESTED, p50": ("requested, median seconds", REQUESTED_LIMIT),
        "command to REQUESTED, p95": ("requested, p95 seconds", SLOW_REQUESTED_LIMIT),
        "rollback to a lingering generation": ("rollback, median seconds", ROLLBACK_LIMIT),
    }
    return figures + [
        Figure(name, result[found], limit, "s", 1.0, against="the limit")
        for name, (found, limit) in limits.items()
        if found in result
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--swaps", type=int, default=5, metavar="N", help="how many swaps without a spare driver")
    parser.add_argument("--spare", type=int, default=5, metavar="N", help="how many swaps with a spare driver")
    parser.add_argument("--crowd", type=int, default=1, metavar="N", help="how many swaps to a history of few people")
    parser.add_argument(
        "--bare-runs", type=int, default=3, metavar="N", help="how often the baseline is measured in between"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="go on after the first of each kind only within this time"
    )
    options = parser.parse_args()
    if not options.bare_runs or not options.swaps + options.spare + options.crowd:
        parser.error("give swaps of one kind or more, and at least one bare run to compare them with")
    # A bare job between two swaps, so that no command waits for the run that has started the swap before it.
    wanted = {SPARE: options.spare, BARE: options.bare_runs, COLD: options.swaps}
    wanted |= {BARE_CROWD: options.crowd, CROWD: options.crowd}
    result = run(wanted, Clock(60 * options.minutes))
    keep("swap", judge(result), result)
    return 1 if result["reads that failed"] or result["events lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
