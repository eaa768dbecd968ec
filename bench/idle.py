"""What the whole stack takes at rest, and what a command of the command line costs beside it.

The stack of `switchyard up` runs as shipped, so without a spare driver, first without events and then with the demo's
twenty a second. Once its first generation is active, nothing is asked of it for some minutes, and the processor time
and the memory of all its processes are read: those that name the root in their command line or their environment, and
all that these have started. Memory is the share of each process in what it uses (PSS), so what several share is counted
once.

Then commands that only read are run, each several times: their processor time and how long a person waits.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from bench.measure import Figure, keep, quantile, tell
from switchyard.health.status_report import describe_status
from switchyard.local import loopback
from switchyard.settings import Settings

MOST_SECONDS = 300.0
SETTLE_SECONDS = 60
"""After the start: the first runs of every DAG, the first maintenance, the compiler of the JVMs"""
CORE_LIMIT, MEMORY_LIMIT_GIB = 0.2, 4.0
STATUS_LIMIT_SECONDS, COMMAND_LIMIT_SECONDS = 0.8, 0.3
COMMANDS = ("status", "history", "tail final_ui", "plan --join-type inner")
PARTS = {
    "bin/postgres": "database",
    "postgres:": "database",
    "jars/broker": "broker",
    "org.apache.spark.deploy.SparkSubmit": "drivers",
    "jobs/": "drivers",
    "api-server": "API server",
    "api_server": "API server",
    "dag-processor": "DAG processor",
    "scheduler": "scheduler and tasks",
    "triggerer": "triggerer",
    "supervisor": "supervisor",
    "switchyard up": "supervisor",
    "airflow worker": "scheduler and tasks",
}
"""A part of the stack by what the command line of its processes contains; the first that fits counts."""


@dataclass(frozen=True)
class Reading:
    """Of each part of the stack: seconds of processor time since it was started, and MiB."""

    at: float
    seconds: Counter[str]
    mib: Counter[str]


def read_processes(root: str) -> Reading:
    seconds: Counter[str] = Counter()
    mib: Counter[str] = Counter()
    for process in find_processes(root):
        with suppress(psutil.Error):
            part = name_part(" ".join(process.cmdline()))
            mib[part] += process.memory_full_info().pss / 2**20
            # With that of its children that have ended.
            seconds[part] += sum(process.cpu_times()[:4])
    return Reading(time.monotonic(), seconds, mib)


def find_processes(root: str) -> list[psutil.Process]:
    """Find the processes that name the root, and all that they have started: some write over what they were told."""
    everything = {process.pid: process for process in psutil.process_iter(["ppid"]) if process.pid != os.getpid()}
    found = {pid for pid, process in everything.items() if names_root(process, root)}
    while more := {pid for pid, one in everything.items() if one.info["ppid"] in found} - found:
        found |= more
    return [everything[pid] for pid in found]


def names_root(process: psutil.Process, root: str) -> bool:
    # One that has ended, or that another user has started, is none of ours.
    with suppress(psutil.Error):
        return root in " ".join(process.cmdline()) or root in process.environ().values()
    return False


def name_part(command: str) -> str:
    return next((part for sign, part in PARTS.items() if sign in command), "other")


@dataclass(frozen=True)
class Rest:
    """Shares of one core, and MiB, by part of the stack."""

    cores: dict[str, float]
    mib: dict[str, float]

    @property
    def core(self) -> float:
        return sum(self.cores.values())

    @property
    def gib(self) -> float:
        return sum(self.mib.values()) / 1024

    def describe(self) -> str:
        parts = sorted(self.mib, key=lambda part: -self.cores.get(part, 0.0))
        return ", ".join(f"{part} {self.cores.get(part, 0.0):.1%} and {self.mib[part]:.0f} MiB" for part in parts)


def watch(root: str, seconds: float) -> Rest:
    before = read_processes(root)
    time.sleep(seconds)
    after = read_processes(root)
    span = after.at - before.at
    cores = {part: max(0.0, after.seconds[part] - before.seconds[part]) / span for part in after.seconds}
    return Rest(cores, dict(after.mib))


@contextmanager
def running_stack(settings: Settings, *options: str) -> Iterator[dict[str, str]]:
    """The stack as shipped; yields the environment for its commands."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")} | {
        "SWITCHYARD_ROOT": settings.root,
        "SWITCHYARD_AIRFLOW_PORT": str(settings.airflow_port),
        "SWITCHYARD_KAFKA_PORT": str(settings.kafka_port),
    }
    run_command(environment, "up", "--detach", *options)
    try:
        yield environment
    finally:
        run_command(environment, "down")


def run_command(environment: dict[str, str], *arguments: str) -> tuple[float, float]:
    """Run a command; return how long it took, and its processor time."""
    command = str(Path(sys.executable).with_name("switchyard"))
    spent, began = children_seconds(), time.monotonic()
    subprocess.run([command, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began, children_seconds() - spent


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_until_at_rest(settings: Settings) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while not describe_status(settings)["healthy"]:
        if time.monotonic() > deadline:
            raise SystemExit("gave up waiting for a healthy generation")
        time.sleep(1)
    time.sleep(SETTLE_SECONDS)


def time_commands(environment: dict[str, str], times: int) -> dict[str, list[tuple[float, float]]]:
    # In turns, so that a minute's run of the stack meets all of them.
    taken: dict[str, list[tuple[float, float]]] = {command: [] for command in COMMANDS}
    for _ in range(times):
        for command in COMMANDS:
            taken[command].append(run_command(environment, *command.split()))
    return taken


def measure(seconds: float, times: int, *options: str) -> tuple[Rest, dict[str, list[tuple[float, float]]]]:
    with tempfile.TemporaryDirectory() as name:
        settings = Settings(
            root=str(Path(name) / "root"), airflow_port=loopback.pick_free_port(), kafka_port=loopback.pick_free_port()
        )
        with running_stack(settings, *options) as environment:
            wait_until_at_rest(settings)
            rest = watch(settings.root, seconds)
            tell(f"{' '.join(options)}: {rest.core:.1%} of one core, {rest.gib:.2f} GiB; {rest.describe()}")
            return rest, time_commands(environment, times)


def judge(rest: Rest, busy: Rest, commands: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    of_core, of_memory = {"against": "a fifth of one core"}, {"against": "4 GiB"}
    waited, _ = zip(*commands["status"], strict=True)
    figures = [
        Figure("at rest without events", rest.core, CORE_LIMIT, "cores", 1.0, **of_core),
        Figure("at rest without events, memory", rest.gib, MEMORY_LIMIT_GIB, "GiB", 1.0, **of_memory),
        Figure("with the demo, memory", busy.gib, MEMORY_LIMIT_GIB, "GiB", 1.0, **of_memory),
        Figure("status, wall clock", statistics.median(waited), STATUS_LIMIT_SECONDS, "s", 1.0, against="the limit"),
    ]
    for command, taken in commands.items():
        spent = statistics.median(used for _, used in taken)
        figures.append(
            Figure(f"{command.split()[0]}, processor", spent, COMMAND_LIMIT_SECONDS, "s", 1.0, against="the limit")
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long the stack is watched at rest")
    parser.add_argument("--times", type=int, default=11, help="how often each command is run")
    options = parser.parse_args()
    rest, commands = measure(options.seconds, options.times, "--no-demo")
    busy, _ = measure(options.seconds, 1, "--demo")
    waited = {command: [wall for wall, _ in taken] for command, taken in commands.items()}
    facts: dict[str, Any] = {
        "parts without events": rest.describe(),
        "with the demo": f"{busy.core:.1%} of one core, {busy.gib:.2f} GiB",
        "parts with the demo": busy.describe(),
        **{
            f"{command}, wall clock": f"median {statistics.median(walls):.2f} s, p95 {quantile(walls, 0.95):.2f} s"
            for command, walls in waited.items()
        },
    }
    keep("idle", judge(rest, busy, commands), facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
