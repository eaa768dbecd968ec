"""Hold what the settings decide, as plain data for the functions that need it. No rule is applied here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

STANDSTILL = timedelta(seconds=20)
"""Spark's executors report every 10 seconds what their tasks have done, so work shows in this time."""


@dataclass(frozen=True)
class Target:
    usersTopic: str
    accountsTopic: str
    joinType: str

    def __str__(self) -> str:
        return f"{self.usersTopic} and {self.accountsTopic}, {self.joinType} join"


@dataclass(frozen=True)
class Policy:
    """What the settings say about requests."""

    defaults: Target
    control_topic: str = "control"
    allowed_topics: tuple[str, ...] = ()
    """Names or patterns with `*`; empty allows every topic."""


@dataclass(frozen=True)
class Rules:
    """The settings that decide about time."""

    ready_deadline: timedelta = timedelta(seconds=120)
    linger: timedelta = timedelta(seconds=8)
    max_lingering: int = 2
    is_keeping: bool = False
    """Whether every replaced stream runs on for `keep` instead of `linger`, however many there are."""
    keep: timedelta | None = timedelta(minutes=15)
    """None: until a person retires it."""
    dwell: timedelta = timedelta(seconds=5)
    probation: timedelta = timedelta(seconds=30)
    silence: timedelta = timedelta(seconds=15)
    """A generation whose driver is silent for so long after its linger time is retired by another process."""
    stuck: timedelta = timedelta(seconds=120)
    """A swap that is not ready and whose driver is silent for so long has failed."""


@dataclass(frozen=True)
class Limits:
    stale: timedelta
    hung: timedelta
    """A driver that was silent for so long is started again."""
    stuck: timedelta
    """A driver that has records to read and whose work has not moved for so long is started again."""
    starting: timedelta
    """A driver may take so long from its start to its first sign of life."""
    lost: timedelta
    """A stream that was not repaired for so long needs a person."""
    least_free_bytes: int
    reject_share: float
    has_spare: bool = False
    """Whether there is to be a spare driver."""
    standstill: timedelta = STANDSTILL
    """Rows that have not moved for so long while records wait are not healthy."""


@dataclass(frozen=True)
class Keeping:
    """How long things stay, and how large files get."""

    retention: timedelta
    """Whatever could be read so long ago can still be read."""
    retired: timedelta
    logs: timedelta
    progress: timedelta
    file_bytes: int
    compact_after: timedelta


@dataclass(frozen=True)
class Executors:
    """What each driver asks a cluster for. Bounded: a swap needs room for two drivers at the same time."""

    count: int = 2
    cores: int = 1
    memory: str = "1g"

    def conf(self, master: str) -> dict[str, str]:
        # A standalone master counts cores, the others count executors.
        sizes = {"spark.executor.cores": str(self.cores), "spark.executor.memory": self.memory}
        if master.startswith("spark://"):
            return sizes | {"spark.cores.max": str(self.count * self.cores)}
        return sizes | {"spark.executor.instances": str(self.count)}
