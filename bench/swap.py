"""What a swap costs: from the command to the flip, and to the first row that a reader sees of the new generation.

Side by side in the same run, on the same machine and beside the same running stack: the bare cost (spark-submit of the
same job to its first committed batch) and the way without Switchyard (stop the job, submit it with other topics), with
the gap that readers see. Events flow to old and new topics and a reader reads `final_ui` all the time. Prints p50, p95
and ratios, and writes bench/results/swap.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from switchyard.kafka.client import write_properties
from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import ensure_topics
from switchyard.layout import PROJECT, Layout
from switchyard.local import loopback
from switchyard.local.jars import spark_jars
from switchyard.local.java import find_java
from switchyard.local.jobs import submit_command
from switchyard.settings import Settings
from switchyard.submission import GenerationRequest, spark_conf, submit_arguments, submit_environment
from switchyard.tables.book import DeltaBook
from switchyard.tables.names import newest_rows
from switchyard.tables.progress import newest_progress
from tests.integration.traffic import Traffic, running_traffic

PAIRS = [("users", "accounts"), ("users-b", "accounts-b")]
MOST_SECONDS = 240.0


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


@contextmanager
def running_stack(settings: Settings) -> Iterator[None]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")} | {
        "SWITCHYARD_ROOT": settings.root,
        "SWITCHYARD_AIRFLOW_PORT": str(settings.airflow_port),
        "SWITCHYARD_KAFKA_PORT": str(settings.kafka_port),
    }
    command = str(Path(sys.executable).with_name("switchyard"))
    subprocess.run([command, "up", "--detach", "--no-demo"], env=environment, check=True)
    try:
        yield
    finally:
        subprocess.run([command, "down"], env=environment, check=True)


def swap_once(settings: Settings, reader: Reader, number: int) -> dict[str, Any]:
    """One swap to the other pair of topics; returns its seconds. Waits until the old generation has retired."""
    users, accounts = PAIRS[(number + 1) % 2]
    value = json.dumps({"usersTopic": users, "accountsTopic": accounts, "joinType": "inner", "id": f"b-{number}"})
    began = datetime.now(UTC)
    publish({"bootstrap.servers": settings.bootstrap}, settings.control_topic, value.encode(), "cli:bench")
    book = DeltaBook(settings.layout)
    outcome = wait_for(lambda: book.ledger().outcomes.get(f"b-{number}"), f"swap {number}")
    if outcome.event != "APPLIED":
        raise SystemExit(f"swap {number} is {outcome.event}: {outcome.detail}")
    generation = outcome.generation
    flipped = book.standing().lastApplied
    wait_for(lambda: generation in reader.first_seen, "the first row of the new generation")
    wait_for(lambda: not book.ledger().lingering, "the old generation to retire")
    return {
        "generation": generation,
        "usersTopic": users,
        "flip": (flipped - began).total_seconds(),
        "firstRow": (reader.first_seen[generation] - began).total_seconds(),
    }


@contextmanager
def bare_job(
    settings: Settings, kafka: Path, generation: int, pair: tuple[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The job itself, without Switchyard around it: a plain spark-submit, without the class archive of set-up."""
    arguments = submit_arguments(GenerationRequest(generation, *pair, "inner", "latest"), kafka)
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


def measure_bare(stack: Settings, folder: Path, number: int) -> tuple[float, float]:
    """Seconds from spark-submit to the first committed batch, and from stopping a job to the next one's first batch."""
    settings = Settings(root=str(folder / f"bare-{number}"), kafka_port=stack.kafka_port)
    kafka = folder / "kafka.properties"
    write_properties(kafka, {"bootstrap.servers": stack.bootstrap})
    began = time.monotonic()
    with bare_job(settings, kafka, 1, PAIRS[0]):
        wait_for(lambda: first_batch(settings, 1), "the bare job's first batch")
        bare = time.monotonic() - began
        pid = int(settings.workspace.driver_pid(1).read_text())
        stopped = time.monotonic()
        os.kill(pid, 15)
        wait_for(lambda: not settings.workspace.driver_pid(1).exists(), "the bare job to stop")
    with bare_job(settings, kafka, 2, PAIRS[1]):
        wait_for(lambda: first_batch(settings, 2), "the resubmitted job's first batch")
        return bare, time.monotonic() - stopped


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return round(ordered[math.ceil(share * len(ordered)) - 1], 2)


def run(swaps: int, bare_runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = Settings(
            root=str(folder / "root"), airflow_port=loopback.pick_free_port(), kafka_port=loopback.pick_free_port()
        )
        with running_stack(settings):
            kafka = {"bootstrap.servers": settings.bootstrap}
            ensure_topics(kafka, [topic for pair in PAIRS for topic in pair], 2)
            with running_traffic(settings.layout, settings.bootstrap, PAIRS, with_reader=False) as traffic:
                return measure(settings, folder, traffic, swaps, bare_runs)


def measure(settings: Settings, folder: Path, traffic: Traffic, swaps: int, bare_runs: int) -> dict[str, Any]:
    reader, stop = Reader(settings.layout), threading.Event()
    thread = threading.Thread(target=reader.read, args=(stop,))
    thread.start()
    wait_for(lambda: reader.first_seen, "the first rows")
    done, bare, lost = [], [], 0
    for number in range(swaps):
        if number % max(1, swaps // bare_runs) == 0 and len(bare) < bare_runs:
            bare.append(measure_bare(settings, folder, len(bare)))
            print(f"bare job {bare[-1][0]:.1f} s, stop and resubmit {bare[-1][1]:.1f} s", flush=True)
        done.append(swap_once(settings, reader, number))
        lost += count_lost(traffic, done[-1])
        print(f"swap {number + 1}: flip {done[-1]['flip']:.1f} s, first row {done[-1]['firstRow']:.1f} s", flush=True)
    stop.set()
    thread.join()
    return summarise(done, bare, reader, traffic, lost)


def count_lost(traffic: Traffic, swap: dict[str, Any]) -> int:
    """Events that never came into the new generation; what is on its way gets time to arrive."""
    until, deadline = datetime.now(UTC), time.monotonic() + 60
    while lost := traffic.find_lost(swap["generation"], swap["usersTopic"], until):
        if time.monotonic() > deadline:
            return len(lost)
        time.sleep(1)
    return 0


def summarise(
    done: list[dict[str, Any]], bare: list[tuple[float, float]], reader: Reader, traffic: Traffic, lost: int
) -> dict[str, Any]:
    flips, rows = [item["flip"] for item in done], [item["firstRow"] for item in done]
    alone, resubmitted = statistics.median(cost for cost, _ in bare), statistics.median(gap for _, gap in bare)
    return {
        "swaps": len(done),
        "flipP50Seconds": quantile(flips, 0.5),
        "flipP95Seconds": quantile(flips, 0.95),
        "firstRowP50Seconds": quantile(rows, 0.5),
        "firstRowP95Seconds": quantile(rows, 0.95),
        "bareMedianSeconds": round(alone, 2),
        "bareWorstSeconds": round(max(cost for cost, _ in bare), 2),
        "ratioP50": round(quantile(flips, 0.5) / alone, 2),
        "ratioP95": round(quantile(flips, 0.95) / alone, 2),
        "gapOfStopAndResubmitSeconds": round(resubmitted, 2),
        "gapSeconds": round(reader.longest_gap, 2),
        "readerErrors": reader.errors + len(traffic.read_errors),
        "eventsLost": lost,
        "eventsSent": len(traffic.delivered),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--bare-runs", type=int, default=4, help="how often the baselines are measured in between")
    options = parser.parse_args()
    result = run(options.swaps, options.bare_runs)
    target = PROJECT / "bench" / "results" / "swap.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name:30} {value}")
    return 0 if result["readerErrors"] == result["eventsLost"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
