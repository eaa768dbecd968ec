"""What is done to the parts of a running stack: killed, or caught in the middle of a command."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from psutil import Process

from switchyard.drivers import processes
from switchyard.local.database import Database
from tests.integration.conftest import Stack
from tests.waiting import eventually


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
