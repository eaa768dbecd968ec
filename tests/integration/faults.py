"""What is done to the parts of a running stack: caught in the middle of a command, left without room on a disk."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from psutil import Process

from switchyard.drivers import processes
from switchyard.drivers.supervisor_state import find_supervisor
from switchyard.local.database import Database, as_owner
from tests.integration.conftest import Stack
from tests.waiting import eventually

FULL_AT_BYTES = 2**20
"""More than the log of the database has, less than where it writes: see `full_disk`."""


def database_of(stack: Stack) -> Database:
    return Database(stack.settings.workspace.database)


def kill_part(stack: Stack, name: str) -> None:
    """Kill it as soon as it runs: it may be about to be restarted because of the fault before."""
    found = eventually(lambda: processes.find_process(stack.component_pid(name)), 60)
    assert found
    processes.send([found], signal.SIGKILL)


def kill_database(stack: Stack) -> None:
    processes.send([_first_process(stack)], signal.SIGKILL)


def _first_process(stack: Stack) -> Process:
    """The process of the database that starts the others; they end with it."""
    database = database_of(stack)
    found = eventually(lambda: (pid := database.find_pid()) and processes.find_process(pid), 60)
    assert found
    return found


@dataclass(frozen=True)
class Caught:
    triggerer: list[Process]
    offset: int
    was_fired: bool
    """Airflow had the event already: the signal came too late"""


def catch_watcher(stack: Stack, number: signal.Signals, send: Callable[[], int], swap_id: str) -> Caught:
    """Stop or kill the triggerer as soon as the history shows a command that it takes; `send` returns its offset."""
    triggerer = processes.find_members([stack.component_pid("triggerer")])
    history = stack.history
    offset = send()
    eventually(lambda: history.ledger().is_known(swap_id), 60, 0)
    processes.send(triggerer, number)
    return Caught(triggerer, offset, is_fired(stack, offset))


def is_fired(stack: Stack, offset: int) -> bool:
    """Return whether Airflow has an event of the watcher for the message at this offset or a later one."""
    query = "select count(*) from asset_event where (extra::json -> 'payload' ->> 'offset')::int >= %s"
    with closing(database_of(stack).connect()) as connection, connection.cursor() as cursor:
        cursor.execute(query, (offset,))
        return bool(cursor.fetchall()[0][0])


@contextmanager
def full_disk(stack: Stack) -> Iterator[None]:
    """No file of the database grows meanwhile, also when it is started again.

    A limit on the size of files stands for the full disk, as it needs no right to mount one. PostgreSQL gets *File too
    large* where it would get *No space left on device*, and treats both alike: its log of changes cannot be written, so
    it ends itself.
    """
    supervisor = find_supervisor(stack.settings.workspace)
    assert supervisor is not None
    _write_past(database_of(stack), FULL_AT_BYTES)
    database, started = _first_process(stack), processes.find_process(supervisor.pid)
    assert started is not None
    # What the supervisor starts has the limit of the supervisor.
    _limit_files([started], str(FULL_AT_BYTES))
    _limit_files([*database.children(), database], str(FULL_AT_BYTES))
    try:
        yield
    finally:
        _limit_files([started], "unlimited")
        # Twice, for what is started meanwhile.
        for _ in range(2):
            _limit_files(started.children(recursive=True), "unlimited")


def _write_past(database: Database, size: int) -> None:
    """Bring the log of changes to a place in its file where no limit of this size lets it be written."""
    with closing(database.connect()) as connection, connection, connection.cursor() as cursor:
        offset = 0
        while offset <= size:
            cursor.execute("select pg_logical_emit_message(false, 'test', repeat('x', %s))", (size,))
            cursor.execute("select file_offset from pg_walfile_name_offset(pg_current_wal_insert_lsn())")
            offset = cursor.fetchall()[0][0]


def _limit_files(members: Iterable[Process], size: str) -> None:
    for member in members:
        limit = ["prlimit", f"--fsize={size}:", "--pid", str(member.pid)]
        # Root in a container may do this only as the user of the process, which for PostgreSQL is another one.
        if subprocess.run(limit, capture_output=True).returncode != 0:
            subprocess.run(as_owner(limit), capture_output=True)
