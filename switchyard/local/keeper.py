"""Keeps a generation running: looks at the tables and at Airflow, decides as data, then acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from switchyard.errors import SwitchyardError
from switchyard.layout import generation_run_id
from switchyard.local.airflow_api import AirflowApi
from switchyard.settings import Settings
from switchyard.tables.history import Event, first_swap_id, read_history
from switchyard.tables.progress import newest_progress
from switchyard.tables.status import read_status
from switchyard.tables.store import Row, has_table, list_files, open_table

DAG_ID = "switchyard_generation"
STREAM_TASK = "stream"
UNDER_WAY = frozenset({"queued", "running"})


class Action(StrEnum):
    WAIT = "wait"
    TRIGGER = "trigger"
    CLEAR = "clear"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class Wanted:
    """The run that should be under way, and what to trigger it with."""

    run_id: str
    conf: dict[str, str] = field(default_factory=dict)
    generation: int | None = None


def decide(run_state: str | None, was_started: bool) -> Action:
    """A run that is missing is triggered, one that has ended is reopened; neither more than once."""
    if run_state in UNDER_WAY:
        return Action.WAIT
    if was_started:
        return Action.GIVE_UP
    return Action.TRIGGER if run_state is None else Action.CLEAR


def choose_run_id(next_generation: int, state_of: Callable[[str], str | None]) -> str:
    """The name of a first run; a refused run of an earlier start keeps its name, so the next one is taken."""
    name = generation_run_id(next_generation)
    for attempt in range(1, 1000):
        candidate = name if attempt == 1 else f"{name}-again-{attempt}"
        if state_of(candidate) in UNDER_WAY | {None}:
            return candidate
    raise SwitchyardError(f"too many refused runs of {DAG_ID} named {name}.")


class Keeper:
    def __init__(self, settings: Settings, api: AirflowApi, started_at: datetime) -> None:
        self._settings = settings
        self._layout = settings.layout
        self._api = api
        self._started_at = started_at
        self._started_runs: set[str] = set()
        self._first: Wanted | None = None

    def keep(self) -> str | None:
        """One round; a sentence for the log when something was done. Raises when nothing is left to try."""
        wanted = self._find_wanted()
        state = self._api.run_state(DAG_ID, wanted.run_id)
        action = decide(state, wanted.run_id in self._started_runs)
        if action is Action.WAIT:
            return None
        if action is Action.GIVE_UP:
            raise SwitchyardError(self._explain(wanted.run_id, state))
        self._started_runs.add(wanted.run_id)
        if action is Action.CLEAR:
            self._api.clear_task(DAG_ID, wanted.run_id, STREAM_TASK)
            return f"run {wanted.run_id} had ended ({state}); its stream goes on from its checkpoint."
        self._api.unpause(DAG_ID)
        self._api.trigger(DAG_ID, wanted.run_id, wanted.conf)
        return f"run {wanted.run_id} of {DAG_ID} was triggered."

    def is_flowing(self, with_rows: bool) -> int | None:
        """The active generation, if it has reported since this start and, when asked for, has joined rows."""
        status = read_status(self._layout)
        if status is None:
            return None
        progress = newest_progress(self._layout, status.generation)
        if progress is None or progress.at < self._started_at:
            return None
        is_batching = progress.batchId >= 0 and self._has_rows(status.generation)
        return status.generation if is_batching or not with_rows else None

    def _has_rows(self, generation: int) -> bool:
        if not has_table(self._layout, "joined"):
            return False
        return bool(list_files(self._layout, "joined", open_table(self._layout, "joined").version(), generation))

    def _find_wanted(self) -> Wanted:
        status = read_status(self._layout)
        rows = read_history(self._layout)
        if status is None:
            return self._find_first(rows)
        asked = [r for r in rows if r["generation"] == status.generation and r["event"] == Event.REQUESTED]
        run_id = first_swap_id(asked[-1]["swapId"]) if asked else generation_run_id(status.generation)
        start = str(asked[-1]["start"] or "latest") if asked else "latest"
        conf = _conf(status.usersTopic, status.accountsTopic, status.joinType, start)
        return Wanted(run_id, conf, status.generation)

    def _find_first(self, rows: list[Row]) -> Wanted:
        """Nothing was ever active: the defaults, from the earliest record, so that none is missed."""
        if self._first is None:
            settings = self._settings
            numbers = [int(row["generation"]) for row in rows if row["generation"] is not None]
            run_id = choose_run_id(1 + max(numbers, default=0), lambda name: self._api.run_state(DAG_ID, name))
            conf = _conf(settings.users_topic, settings.accounts_topic, settings.join_type, "earliest")
            self._first = Wanted(run_id, conf)
        return self._first

    def _explain(self, run_id: str, state: str | None) -> str:
        outcomes = {Event.REJECTED, Event.FAILED}
        rows = [row for row in read_history(self._layout) if first_swap_id(row["swapId"]) == run_id]
        details = [str(row["detail"]) for row in rows if row["event"] in outcomes and row["detail"]]
        logs = self._settings.workspace.airflow / "logs" / f"dag_id={DAG_ID}" / f"run_id={run_id}"
        return f"run {run_id} ended as {state}: {details[-1] if details else 'no reason given'} (logs: {logs})."


def _conf(users_topic: str, accounts_topic: str, join_type: str, start: str) -> dict[str, str]:
    return {
        "users_topic": users_topic,
        "accounts_topic": accounts_topic,
        "join_type": join_type,
        "start": start,
    }
