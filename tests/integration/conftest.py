"""The whole of Switchyard, started by its own command line on separate ports and in a separate root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from switchyard.drivers.supervisor_state import read_state
from switchyard.health.status_report import describe_status
from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import ensure_topics
from switchyard.layout import PROJECT
from switchyard.local import loopback
from switchyard.local.airflow_api import AirflowApi
from switchyard.local.broker import Broker
from switchyard.settings import Settings
from switchyard.swap.history_store import HistoryStore

DAG_ID = "switchyard_generation"
HEALTH_DAG = "switchyard_health"


@dataclass(frozen=True)
class Stack:
    settings: Settings

    @property
    def environment(self) -> dict[str, str]:
        control = self.settings.kafka_control_properties
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")},
            "SWITCHYARD_ROOT": self.settings.root,
            "SWITCHYARD_AIRFLOW_PORT": str(self.settings.airflow_port),
            "SWITCHYARD_KAFKA_PORT": str(self.settings.kafka_port),
            "SWITCHYARD_LINGER_SECONDS": str(self.settings.linger_seconds),
            "SWITCHYARD_PROBATION_SECONDS": str(self.settings.probation_seconds),
            "SWITCHYARD_READY_DEADLINE_SECONDS": str(self.settings.ready_deadline_seconds),
            "SWITCHYARD_HUNG_SECONDS": str(self.settings.hung_seconds),
            "SWITCHYARD_SPARE": str(self.settings.spare),
            **({"SWITCHYARD_KAFKA_CONTROL_PROPERTIES": str(control)} if control else {}),
            # Nothing here lives long enough to be spared: maintenance meets files that the stream has just written.
            "SWITCHYARD_COMPACT_AFTER_MINUTES": "0",
            # Several drivers share two cores here: fewer batches leave more for the one that starts.
            "SWITCHYARD_TRIGGER_SECONDS": "2",
        }

    @property
    def api(self) -> AirflowApi:
        return AirflowApi.of(self.settings)

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.settings.bootstrap}

    def run(self, *arguments: str, timeout_seconds: float = 240) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("switchyard")), *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=PROJECT, capture_output=True, text=True, timeout=timeout_seconds
        )

    def json(self, *arguments: str, expect: int = 0) -> Any:
        answer = self.run(*arguments, "--json")
        assert answer.returncode == expect, answer.stdout + answer.stderr
        return json.loads(answer.stdout)

    def status(self) -> dict[str, Any]:
        """What `switchyard status` shows, without a process for each look."""
        return describe_status(self.settings)

    @cached_property
    def history(self) -> HistoryStore:
        return HistoryStore(self.settings.layout)

    def component_pid(self, name: str) -> int:
        state = read_state(self.settings.workspace)
        assert state is not None
        pid = state.components[name].pid
        assert pid is not None
        return pid

    def run_note(self, dag_id: str, run_id: str) -> str:
        run = self.api._call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")
        return str(run["note"])

    def task_state(self, dag_id: str, run_id: str, task_id: str) -> str | None:
        path = f"{self.api._run_path(dag_id, run_id)}/taskInstances/{task_id}"
        found = self.api._call("GET", path, missing_ok=True)
        return None if found is None or found["state"] is None else str(found["state"])

    def processes(self) -> list[str]:
        """Command lines of all processes that name this stack's root."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if self.settings.root in command:
                found.append(command)
        return found


@contextmanager
def frozen_database(stack: Stack) -> Iterator[None]:
    """Airflow's database, with all of its processes, answers nobody for a while."""
    server = psutil.Process(stack.component_pid("database"))
    # The first one starts the others, so it stops first.
    frozen = [server]
    server.suspend()
    try:
        frozen += server.children()
        for process in frozen[1:]:
            process.suspend()
        yield
    finally:
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.resume()


MESSAGES_BEFORE_BOOT: dict[str, bytes] = {
    "early-1": b'{"id": "early-1", "joinType": "inner"}',
    "early-2": b'{"id": "early-2", "usersTopic": "not-there-yet"}',
    "early-3": b'{"id": "early-3", "joinType": "left_outer"}',
}


def send_before_the_first_boot(stack: Stack) -> None:
    """The broker of the stack runs for a moment, as an external one would have been there before."""
    broker = Broker(stack.settings.workspace.broker, stack.settings.kafka_port)
    broker.start()
    try:
        broker.wait_until_ready(60)
        ensure_topics(stack.kafka, ["users", "accounts", stack.settings.control_topic])
        for value in MESSAGES_BEFORE_BOOT.values():
            publish(stack.kafka, stack.settings.control_topic, value, "cli:test")
    finally:
        broker.stop()


def running_stack(folder: Path) -> Iterator[Stack]:
    settings = Settings(
        root=str(folder / "root"),
        airflow_port=loopback.pick_free_port(),
        kafka_port=loopback.pick_free_port(),
        # Several tests wait until the old generation has retired; two roll back before it has.
        linger_seconds=8,
        probation_seconds=20,
        ready_deadline_seconds=200,
        # Longer than a hung driver needs to be retired by others, which a test waits for.
        hung_seconds=75,
    )
    stack = Stack(settings)
    send_before_the_first_boot(stack)
    started = stack.run("up", "--detach")
    assert started.returncode == 0, started.stdout + started.stderr
    # A dozen tasks each minute are a good part of two cores; `test_health.py` is about them.
    stack.api.set_paused(HEALTH_DAG, True)
    yield stack
    stack.run("down")
