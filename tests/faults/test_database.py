"""Airflow's database on a disk that is full: see docs/operations.md, "When something breaks"."""

from __future__ import annotations

from pathlib import Path

import psycopg2
import pytest

from switchyard.local.component import ServerComponent
from switchyard.local.database import Database
from tests.faults.test_stream import fill
from tests.services.test_database import run
from tests.waiting import eventually

WAL_SEGMENT = 2**24
"""Its log of changes consists of files of this size"""


@pytest.mark.parametrize("small_disk", [96], indirect=True, ids=["96 MB"])
def test_what_was_committed_is_there_when_a_full_disk_has_room_again(small_disk: Path) -> None:
    """First tables cannot grow, then its log of changes cannot, and it ends itself."""
    database, ballast = Database(small_disk / "database"), small_disk / "ballast"
    database.start()
    try:
        database.wait_until_ready(60)
        run(database, "create table kept as select 1 as number")
        fill(ballast)
        with pytest.raises(psycopg2.errors.DiskFull):
            run(database, "insert into kept select generate_series(1, 1000000)")
        with pytest.raises(psycopg2.Error, match="closed"):
            run(database, f"select pg_logical_emit_message(true, 'test', repeat('x', {WAL_SEGMENT}))")
        eventually(lambda: not database.is_running(), 30)
        component = ServerComponent(database)
        component.start()
        eventually(lambda: not database.is_running(), 30)
        assert "No space left on device" in database.log.read_text()
        ballast.unlink()
        eventually(lambda: component.revive() is None and database.is_answering(), 60)
        assert run(database, "select number from kept") == [(1,)]
        run(database, "insert into kept values (2)")
    finally:
        database.stop()
