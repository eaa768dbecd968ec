"""The processes of one installation, and the order in which they start and stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from switchyard.drivers import processes, running_drivers
from switchyard.drivers.supervisor_state import State
from switchyard.errors import SwitchyardError
from switchyard.local import airflow
from switchyard.local.broker import Broker
from switchyard.local.component import Component, ServerComponent
from switchyard.local.database import Database
from switchyard.local.server import Server
from switchyard.settings import Settings

SERVER_SECONDS = 60.0
BATCH_SECONDS = 40.0
AIRFLOW_SECONDS = 8.0

SERVERS = (Database.name, Broker.name)
Report = Callable[[Component], None]


class Installation:
    def __init__(self, settings: Settings, demo: bool) -> None:
        self._settings = settings
        self._env = airflow.airflow_environment(settings)
        self._home = settings.workspace.home
        self._server_components = [ServerComponent(server) for server in embedded_servers(settings)]
        self.airflow = [self._component(name, "airflow", *words) for name, words in airflow.COMPONENTS.items()]
        self.demo = [self._component("demo", "switchyard.cli.main", "demo")] if demo else []

    def components(self) -> list[Component]:
        return [*self._server_components, *self.airflow, *self.demo]

    def start(self, report: Report) -> None:
        """Start everything. Airflow takes longest, so it waits only for its database; the broker starts meanwhile."""
        from switchyard.kafka.topics import ensure_topics

        settings = self._settings
        for started in self._server_components:
            started.start()
        self._prepare_database(report)
        for component in self.airflow:
            component.start()
        if self._report_when_ready(Broker, report):
            names = [settings.users_topic, settings.accounts_topic, settings.control_topic]
            ensure_topics({"bootstrap.servers": settings.bootstrap}, names, 1)
        for component in self.demo:
            component.start()

    def _prepare_database(self, report: Report) -> None:
        """Prepare Airflow's database. One that dies meanwhile is started again, once: what was half done is undone."""
        self._report_when_ready(Database, report)
        try:
            airflow.prepare_database(self._settings, self._log("initialise"))
        except SwitchyardError:
            databases = [one for one in self._server_components if isinstance(one.server, Database)]
            if all(database.is_running() for database in databases):
                raise
            for database in databases:
                database.restarts += 1
                database.start()
            self._report_when_ready(Database, report)
            airflow.prepare_database(self._settings, self._log("initialise"))

    def stop(self) -> None:
        by_name = {component.name: component for component in self.airflow}
        # It ends first, so that no task starts while drivers end; the API server takes their results.
        scheduler = by_name.pop("scheduler")
        scheduler.ask_to_stop()
        running_drivers.stop_drivers(self._settings.workspace, BATCH_SECONDS)
        scheduler.finish(AIRFLOW_SECONDS)
        running_drivers.stop_drivers(self._settings.workspace, 5)
        others = [*by_name.values(), *self.demo]
        for component in others:
            component.ask_to_stop()
        for component in others:
            component.finish(AIRFLOW_SECONDS)
        for component in self._server_components:
            component.finish(30)

    def _report_when_ready(self, kind: type[Server], report: Report) -> bool:
        """Wait for an embedded server; return False when this installation has none of the kind."""
        for component in self._server_components:
            if isinstance(component.server, kind):
                component.server.wait_until_ready(SERVER_SECONDS)
                report(component)
                return True
        return False

    def _component(self, name: str, *module: str) -> Component:
        return Component(name, [sys.executable, "-m", *module], self._env, self._home, self._log(name))

    def _log(self, name: str) -> Path:
        return self._settings.workspace.process_logs / f"{name}.log"


def embedded_servers(settings: Settings) -> list[Server]:
    """Return Airflow's database and the broker, without external ones, in the order of their start."""
    workspace = settings.workspace
    database = [] if airflow.names_database(os.environ) else [Database(workspace.database)]
    broker = [Broker(workspace.broker, settings.kafka_port)] if settings.kafka_bootstrap is None else []
    return [*database, *broker]


def end_leftovers(settings: Settings, last: State | None) -> None:
    """End what a supervisor that was killed has left behind, so that nothing runs twice."""
    running_drivers.stop_drivers(settings.workspace, 20)
    # After a reboot the pids of the state file belong to other processes.
    if last is None or last.boot != processes.boot_id():
        return
    parts = {name: part.pid for name, part in last.components.items() if name not in SERVERS}
    processes.end_sessions([pid for pid in parts.values() if pid is not None], 10)
    # The scheduler, alive until now, may have started the next attempt.
    running_drivers.stop_drivers(settings.workspace, 20)
    for server in embedded_servers(settings):
        with suppress(SwitchyardError):
            server.stop()
