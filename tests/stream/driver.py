"""A generation's driver as a real process: spark-submit of the job, watched from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from switchyard.drivers import processes
from switchyard.drivers.java import find_java
from switchyard.drivers.jobs import job_conf
from switchyard.drivers.submission import bind_environment, submit_arguments, submit_environment
from switchyard.kafka.client_settings import write_properties
from switchyard.kafka.topics import TopicReader
from switchyard.layout import PROJECT, Layout
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.stream.audit import audit_at_newest
from switchyard.swap.commands import Answer, CommandHandler
from switchyard.swap.control_message import Message
from switchyard.tables.progress import newest_progress
from tests.topics import Topics

JOB = PROJECT / "jobs" / "stream_generation.py"
FENCED, KILLED, STOPPED = 75, 137, 143
CRASHING_JOB = Path(__file__).with_name("crashing_job.py")


@dataclass(frozen=True)
class Driver:
    """One attempt. Its output is in `log`."""

    process: subprocess.Popen[bytes]
    settings: Settings
    generation: int
    log: Path

    def wait(self, seconds: float = 120) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end within {seconds:g} s:\n{self.tail()}") from None

    def ask_to_stop(self) -> None:
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """To the Python process of this attempt: the file of the generation's driver may name another attempt."""
        of_session = processes.find_members([self.process.pid])
        next(member for member in of_session if member.name().startswith("python")).send_signal(number)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def has_read(self, records: int) -> bool:
        """Whether the newest progress row stands behind so many records of both topics."""
        assert self.process.poll() is None, f"the driver has ended with {self.process.returncode}:\n{self.tail()}"
        return consumed(self.settings.layout, self.generation) >= records


def consumed(layout: Layout, generation: int) -> int:
    """How many offsets of both topics the newest progress row has behind it."""
    import json

    progress = newest_progress(layout, generation)
    ends = json.loads(progress.endOffsets or "{}") if progress else {}
    return sum(offset for partitions in ends.values() for offset in partitions.values())


def assert_clean(spark: SparkSession, settings: Settings, generation: int = 1) -> None:
    audit = audit_at_newest(lambda: spark, settings, generation)
    assert (audit.missing, audit.extra, audit.unaccounted, audit.holes) == (0, 0, 0, 0), audit
    assert audit.rowsCompared > 0


def ask(settings: Settings, topics: Topics, swap_id: str, join_type: str, start: str) -> Answer:
    message = Message(topics.users, topics.accounts, join_type, start)
    with TopicReader(topics.kafka) as reader:
        return CommandHandler(settings, reader).take(message, swap_id, "test")


@contextmanager
def running_driver(
    settings: Settings,
    topics: Topics,
    folder: Path,
    *,
    generation: int = 1,
    join_type: str = "left",
    job: Path = JOB,
    environment: Mapping[str, str] | None = None,
    crash: str = "",
    arguments: Sequence[str] = (),
) -> Iterator[Driver]:
    """Starts a driver; whatever is left of it at the end is killed. Another `job` does something to it first.

    `crash` names what `crashing_job.py` is to do; `arguments` are those of another job.
    """
    if crash:
        job, environment = CRASHING_JOB, {**(environment or {}), "CRASH_POINT": crash}
    properties = folder / "kafka.properties"
    write_properties(properties, topics.kafka)
    target = Target(topics.users, topics.accounts, join_type)
    command = [
        str(Path(sys.executable).with_name("spark-submit")),
        *("--master", "local[2]", "--driver-memory", settings.driver_memory),
        *[f"--conf={key}={value}" for key, value in job_conf(settings, "local[2]").items()],
        str(job),
        *(arguments or submit_arguments(generation, target, "earliest", properties)),
    ]
    environment = {
        **(environment or {}),
        **os.environ,
        **submit_environment(os.environ, Path(sys.executable), find_java().path),
        **bind_environment("local[2]"),
        "PYTHONPATH": str(PROJECT),
        "SWITCHYARD_ROOT": settings.root,
        "SWITCHYARD_HOME": str(settings.workspace.home),
        "SWITCHYARD_LINGER_SECONDS": str(settings.linger_seconds),
        "SWITCHYARD_PROBATION_SECONDS": str(settings.probation_seconds),
        "SWITCHYARD_MAX_OFFSETS_PER_TRIGGER": str(settings.max_offsets_per_trigger),
    }
    log = folder / f"driver-{len(list(folder.glob('driver-*.log')))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield Driver(process, settings, generation, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
