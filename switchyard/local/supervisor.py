"""The process behind `switchyard up`: starts everything, restarts what ends, and stops everything in order on SIGTERM.

It writes its state to a file that the command line reads. It starts a generation only until the first one is ready;
later, people and the control topic decide what runs in Airflow.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
from datetime import UTC, datetime

from switchyard.deadline import Deadline
from switchyard.drivers.processes import boot_id
from switchyard.drivers.supervisor_state import ComponentState, State, lock_file, read_state, write_state
from switchyard.errors import SwitchyardError
from switchyard.local.airflow import COMPONENTS
from switchyard.local.airflow_api import AirflowApi, ApiError
from switchyard.local.component import Component
from switchyard.local.first_generation import CONTROL_DAG_ID, DAG_ID, FirstGeneration
from switchyard.local.installation import Installation, end_leftovers
from switchyard.settings import Settings, load_settings

READY_SECONDS = 300.0
ROUND_SECONDS = 1.0
HEALTH_SECONDS = 5.0
HUNG_SECONDS = 15.0
# The name of each part in Airflow's health report.
HEALTH_NAMES = {name: name.replace("-", "_") for name in COMPONENTS} | {"api-server": "metadatabase"}

log = logging.getLogger("switchyard.supervisor")


class Supervisor:
    def __init__(self, settings: Settings, demo: bool) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._state = State(pid=os.getpid(), boot=boot_id(), keeps=settings.keep_generations)
        self._installation = Installation(settings, demo)
        self._api = AirflowApi.of(settings)
        self._first_generation = FirstGeneration(settings, self._api, datetime.now(UTC))
        self._has_demo = demo
        self._deadline = Deadline(READY_SECONDS)
        self._health_due = Deadline(HEALTH_SECONDS)
        self._silent: dict[str, Deadline] = {}
        self._is_state_written = True

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: self._stop.set())
        code = 0
        try:
            self._report("starting")
            self._installation.start(self._note_ready)
            while not self._stop.wait(ROUND_SECONDS):
                self._run_round()
        except (SwitchyardError, OSError) as error:
            log.error("%s", error)
            self._state.message = str(error)
            code = 1
        self._report("stopping")
        self._installation.stop()
        self._report("failed" if code else "stopped")
        return code

    def _run_round(self) -> None:
        for component in self._installation.components():
            if news := self._revive(component):
                log.warning("%s", news)
        if self._state.phase == "starting":
            self._check_start()
        elif self._health_due.restart_if_passed(HEALTH_SECONDS):
            self._end_hung_parts()
        self._report(self._state.phase)

    def _end_hung_parts(self) -> None:
        """End each part of Airflow that lives but no longer writes heartbeats, so that the next round restarts it."""
        # A scheduler that loses its database for a second waits for its tasks to end, and the task of a stream never
        # does (LocalExecutor.end in Airflow 3.3).
        healthy = self._api.healthy_parts()
        for component in self._installation.airflow:
            # Without the database, or an API server that reads it, no heartbeat says anything.
            is_known = "metadatabase" in healthy and component.is_steady
            if not is_known or HEALTH_NAMES[component.name] in healthy:
                self._silent.pop(component.name, None)
            elif self._silent.setdefault(component.name, Deadline(HUNG_SECONDS)).has_passed:
                log.warning("%s runs but has written no heartbeat for long; it is ended.", component.name)
                component.kill()
                del self._silent[component.name]

    def _revive(self, component: Component) -> str | None:
        """Restart what ended. A restart that fails is tried again; while everything starts, it fails the start."""
        try:
            return component.revive()
        except (SwitchyardError, OSError) as error:
            if self._state.phase == "starting":
                raise
            return str(error)

    def _check_start(self) -> None:
        healthy = self._api.healthy_parts()
        for component in self._installation.components():
            name = component.name
            if HEALTH_NAMES.get(name) in healthy or (name == "demo" and component.is_running()):
                self._note_ready(component)
        try:
            generation = self._find_ready_generation() if "scheduler" in healthy else None
        except ApiError as error:
            if not error.is_passing:
                raise
            log.warning("%s", error)
            generation = None
        if generation is not None:
            self._state.message = f"generation {generation} is active"
            self._report("ready")
        elif self._deadline.has_passed:
            logs = self._settings.workspace.process_logs
            raise SwitchyardError(f"no generation was ready within {READY_SECONDS:g} s: see the logs in {logs}.")

    def _find_ready_generation(self) -> int | None:
        """Return the generation whose rows flow; without one, do what is left to start it."""
        if not all(map(self._api.is_dag_known, (DAG_ID, CONTROL_DAG_ID))):
            return None
        if news := self._first_generation.advance():
            log.info("%s", news)
        return self._first_generation.find_flowing(with_demo=self._has_demo)

    def _note_ready(self, component: Component) -> None:
        self._state.components.setdefault(component.name, ComponentState()).ready = True
        self._report(self._state.phase)

    def _report(self, phase: str) -> None:
        self._state.phase = phase  # type: ignore[assignment]
        for component in self._installation.components():
            part = self._state.components.setdefault(component.name, ComponentState())
            part.pid, part.restarts = component.pid, component.restarts
        self._write_state()

    def _write_state(self) -> None:
        """Write the state. While everything starts, a failure ends the start; later, all goes on without."""
        try:
            write_state(self._settings.workspace, self._state)
        except OSError as error:
            if self._state.phase == "starting":
                raise
            # A full disk must end neither the supervision nor an orderly stop.
            if self._is_state_written:
                log.warning("The state for the command line cannot be written: %s", error)
            self._is_state_written = False
        else:
            self._is_state_written = True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", required=True, help="names the installation of this process")
    parser.add_argument("--no-demo", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    # It would log each look at Airflow's health.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = load_settings()
    with lock_file(settings.workspace).open("w") as lock:
        try:
            # Held for the life of this process. The system releases the lock of a process that was killed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            log.error("another supervisor runs on %s", settings.workspace.home)
            return 1
        end_leftovers(settings, read_state(settings.workspace))
        return Supervisor(settings, demo=not arguments.no_demo).run()


if __name__ == "__main__":
    sys.exit(main())
