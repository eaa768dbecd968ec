"""Drivers as real processes: a generation's own, or a job of the bench started in the same way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from switchyard.drivers.jars import delta_jars
from switchyard.drivers.java import find_java
from switchyard.drivers.jobs import job_conf, submit_command
from switchyard.drivers.submission import bind_environment, submit_arguments, submit_environment
from switchyard.kafka.client_settings import write_properties
from switchyard.layout import PROJECT
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap.history_store import HistoryStore

GENERATION = 1
GENERATION_JOB = "stream_generation.py"
PLAIN_HEAP = "1g"
"""What Spark gives a driver when nobody asks for more. Our own heap is smaller, and needs our options for the JVM."""
APPEND_JOB = str(PROJECT / "bench" / "append.py")
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Driver:
    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, look: Callable[[], Seen | None], what: str, seconds: float, every: float = 0.2) -> Seen:
        """Return what a look gives once it gives something; ends the measurement when the driver has ended first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if seen := look():
                return seen
            if self.process.poll() is not None:
                raise SystemExit(f"the driver ended with {self.process.returncode} before {what}:\n{self._tail()}")
            time.sleep(every)
        raise SystemExit(f"gave up waiting for {what} after {seconds:g} s:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


@contextmanager
def running_job(
    settings: Settings, job: str, arguments: list[str], conf: Mapping[str, str], log: Path
) -> Iterator[Driver]:
    """A spark-submit; what is left of it at the end is killed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")}
    environment |= submit_environment(os.environ, Path(sys.executable), find_java().path)
    environment |= bind_environment(settings.spark_master)
    environment |= {"PYTHONPATH": str(PROJECT), "SWITCHYARD_ROOT": settings.root}
    environment["SWITCHYARD_TRIGGER_SECONDS"] = str(settings.trigger_seconds)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            submit_command(settings, job, arguments, conf),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Driver(process, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def running_generation(
    settings: Settings, kafka: Mapping[str, str], users: str, accounts: str, join_type: str
) -> Iterator[Driver]:
    """Return the first generation of a root, from the earliest records: the driver that Airflow would start."""
    home = Path(settings.root)
    properties = home / "kafka.properties"
    home.mkdir(parents=True, exist_ok=True)
    write_properties(properties, kafka)
    arguments = submit_arguments(GENERATION, Target(users, accounts, join_type), "earliest", properties)
    conf = job_conf(settings, settings.spark_master)
    with running_job(settings, GENERATION_JOB, arguments, conf, home / "driver.log") as driver:
        yield driver


@contextmanager
def running_append(
    settings: Settings, kafka: Mapping[str, str], users: str, accounts: str, conf: Mapping[str, str]
) -> Iterator[Driver]:
    """Return the baseline without a join, submitted like a generation and with the jars of Spark's Delta writer."""
    home = Path(settings.root)
    properties = home / "kafka.properties"
    home.mkdir(parents=True, exist_ok=True)
    write_properties(properties, kafka)
    arguments = ["--users-topic", users, "--accounts-topic", accounts, "--kafka-properties", str(properties)]
    jars = {"spark.jars": ",".join(map(str, delta_jars()))}
    everything = job_conf(settings, settings.spark_master) | jars | dict(conf)
    with running_job(settings, APPEND_JOB, arguments, everything, home / "driver.log") as driver:
        yield driver


def is_active(settings: Settings) -> bool:
    return HistoryStore(settings.layout).status_row().generation == GENERATION


def resident_bytes(pid: int) -> int:
    """Memory that a process has in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
