"""Get a generation to run at `up`: read the tables and Airflow's runs, choose an action, then carry it out."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from switchyard.errors import SwitchyardError
from switchyard.local.airflow_api import AirflowApi
from switchyard.settings import Settings
from switchyard.swap.history import Event, Ledger
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.reconcile import Run, run_of_life
from switchyard.tables.progress import newest_progress
from switchyard.tables.status import read_status
from switchyard.tables.store import has_table, list_files, open_table

DAG_ID = "switchyard_generation"
CONTROL_DAG_ID = "switchyard_control"
STREAM_TASK = "stream"
UNDER_WAY = frozenset({"queued", "running"})


class Action(StrEnum):
    WAIT = "wait"
    TRIGGER = "trigger"
    CLEAR = "clear"
    GIVE_UP = "give up"


def choose_action(run_state: str | None, was_started: bool) -> Action:
    """Trigger a run that is missing, clear one that has ended; neither more than once."""
    if run_state in UNDER_WAY:
        return Action.WAIT
    if was_started:
        return Action.GIVE_UP
    return Action.TRIGGER if run_state is None else Action.CLEAR


class FirstGeneration:
    def __init__(self, settings: Settings, api: AirflowApi, started_at: datetime) -> None:
        self._settings = settings
        self._layout = settings.layout
        self._api = api
        self._started_at = started_at
        self._round_id = f"up-{started_at:%Y%m%dT%H%M%S}"
        self._started_runs: set[str] = set()
        self._has_asked = False

    def advance(self) -> str | None:
        """Do the next step; return a sentence for the log if there was one. Raise when nothing is left to try."""
        if not self._has_asked:
            return self._ask_for_round()
        ledger, status = HistoryStore(self._layout).ledger(), read_status(self._layout)
        if status is None:
            self._check_refusal(ledger)
            return None
        run = run_of_life(ledger, status.generation)
        return self._start_if_needed(run) if run else None

    def _ask_for_round(self) -> str:
        """Trigger the control DAG: at the first start it asks for a generation, later it reads waiting messages."""
        self._has_asked = True
        for dag_id in (DAG_ID, CONTROL_DAG_ID):
            self._api.set_paused(dag_id, False)
        self._api.trigger(CONTROL_DAG_ID, self._round_id, {})
        return f"run {self._round_id} of {CONTROL_DAG_ID} was triggered."

    def _check_refusal(self, ledger: Ledger) -> None:
        """Raise the reason of the last refusal when the control DAG has ended without asking for a generation."""
        is_over = self._api.run_state(CONTROL_DAG_ID, self._round_id) in ("success", "failed")
        if not is_over or ledger.open_requests or not ledger.entries:
            return
        last = ledger.entries[-1]
        if last.event in (Event.REJECTED, Event.FAILED):
            raise SwitchyardError(f"no generation could be started: {last.detail}")

    def _start_if_needed(self, run: Run) -> str | None:
        state = self._api.run_state(DAG_ID, run.run_id)
        action = choose_action(state, run.run_id in self._started_runs)
        if action is Action.WAIT:
            return None
        if action is Action.GIVE_UP:
            logs = self._settings.workspace.airflow / "logs" / f"dag_id={DAG_ID}" / f"run_id={run.run_id}"
            raise SwitchyardError(f"run {run.run_id} ended as {state} (logs: {logs}).")
        self._started_runs.add(run.run_id)
        if action is Action.CLEAR:
            self._api.clear_task(DAG_ID, run.run_id, STREAM_TASK)
            return f"run {run.run_id} had ended ({state}); its stream goes on from its checkpoint."
        self._api.trigger(DAG_ID, run.run_id, run.conf, run.note)
        return f"run {run.run_id} of {DAG_ID} was triggered."

    def find_flowing(self, with_demo: bool) -> int | None:
        """Return the active generation if it has reported since this start and, fed by the demo, has joined rows."""
        status = read_status(self._layout)
        if status is None:
            return None
        if HistoryStore(self._layout).ledger().is_snapshot(status.generation):
            return status.generation
        progress = newest_progress(self._layout, status.generation)
        if progress is None or progress.at < self._started_at:
            return None
        is_fed = with_demo and status.usersTopic == self._settings.users_topic
        is_batching = progress.batchId >= 0 and self._has_rows(status.generation)
        return status.generation if is_batching or not is_fed else None

    def _has_rows(self, generation: int) -> bool:
        if not has_table(self._layout, "joined"):
            return False
        return bool(list_files(self._layout, "joined", open_table(self._layout, "joined").version(), generation))
