"""Derive every path and name that Switchyard uses from the root and a generation. Pure: touches no disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from switchyard.records import JOIN_RULES, SIDES

PROJECT = Path(__file__).resolve().parent.parent
"""The checkout: dags, jobs and plugins lie beside the package."""

BIG_TABLES = (*(side.plural for side in SIDES), "joined", "rejects")
SMALL_TABLES = ("status", "swap_history", "logs", "control_raw", "progress", "audits", "incidents", "forgotten")
JOIN_TYPES = tuple(JOIN_RULES)

KAFKA_CONNECTION, CONTROL_CONNECTION = "kafka_default", "kafka_control"
"""Airflow's connections for the data and, if it is on another cluster, for the control topic."""

REHEARSAL = "rehearsal"
"""A temporary folder, for the rehearsal of a spare driver whose executors or tables are on another disk."""
_URI = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """Paths below one root. The root is a folder or any URI that Spark and delta-rs both open."""

    root: str

    @property
    def is_local(self) -> bool:
        return _URI.match(self.root) is None

    def under(self, *parts: str) -> str:
        base = str(Path(self.root).absolute()) if self.is_local else self.root.rstrip("/")
        return "/".join((base, *parts))

    def table(self, name: str) -> str:
        if name not in BIG_TABLES + SMALL_TABLES:
            raise ValueError(f"there is no table named {name!r}")
        return self.under("tables", name)

    def checkpoint(self, generation: int) -> str:
        return self.under("checkpoints", str(generation))

    def spec_name(self, generation: int) -> str:
        """Name the file below `checkpoints` that keeps the spec of a generation."""
        return f"{generation}.json"


@dataclass(frozen=True)
class Workspace:
    """Paths on this machine's own disk: process ids, sockets, logs, secrets. Never a URI."""

    home: Path

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def secrets(self) -> Path:
        return self.home / "secrets"

    @property
    def broker(self) -> Path:
        return self.home / "broker"

    @property
    def database(self) -> Path:
        return self.home / "database"

    @property
    def airflow(self) -> Path:
        return self.home / "airflow"

    @property
    def process_logs(self) -> Path:
        return self.home / "process-logs"

    @property
    def spares(self) -> Path:
        """One folder for each spare driver, also after a generation has taken it."""
        return self.run / "spares"

    def driver_pid(self, generation: int) -> Path:
        return self.run / f"driver-{generation}.pid"

    def kafka_properties(self, generation: int, owner: int, order: str = "") -> Path:
        # One file for each process that starts a driver: an attempt that ends must not remove that of its successor.
        # A process that may give several orders at once has one for each.
        return self.secrets / f"kafka-{generation}-{owner}{order and f'-{order}'}.properties"


def batch_app_id(generation: int) -> str:
    """Name the Delta transaction id whose version is the last micro-batch written to a table."""
    return f"switchyard.g{generation}.batch"


def forgotten_app_id(generation: int) -> str:
    """Name the Delta transaction id whose version is the last mark of `forgotten` that a table has carried out."""
    return f"switchyard.g{generation}.forgotten"


def attempt_app_id(generation: int) -> str:
    """Name the Delta transaction id whose version is the newest attempt allowed to write to a table."""
    return f"switchyard.g{generation}.attempt"
