"""SQLite as Airflow's database on one machine: a finer clock, turns, and no wait for the disk.

Airflow starts a run when its `run_after` is not after CURRENT_TIMESTAMP, which SQLite gives in whole seconds: every run
waits up to a second, twice for a swap. And one writer at a time: who finds the database locked waits for its turn
instead of failing after the usual 5 s, and nobody holds the lock while the disk confirms a commit: with Airflow's
write-ahead log a crash of a process loses nothing, one of the machine may lose the last moments and no more. PostgreSQL
needs none of this.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any


class Connection(sqlite3.Connection):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.create_function("current_timestamp", 0, _now)
        self.execute("PRAGMA synchronous = NORMAL")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


TURN_SECONDS = 30
CONNECT_ARGS = {"factory": Connection, "timeout": TURN_SECONDS}
