"""SQLite's clock for Airflow's scheduler, in microseconds.

Airflow starts a run when its `run_after` is not after CURRENT_TIMESTAMP, which SQLite gives in whole seconds: every run
waits up to a second, twice for a swap. And one writer at a time: who finds the database locked waits for its turn
instead of failing after the usual 5 s. PostgreSQL needs none of this.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any


class Connection(sqlite3.Connection):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.create_function("current_timestamp", 0, _now)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


TURN_SECONDS = 30
CONNECT_ARGS = {"factory": Connection, "timeout": TURN_SECONDS}
