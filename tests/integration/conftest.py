"""The whole of Switchyard, started by its own command line on ports and a root of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from switchyard.layout import PROJECT
from switchyard.local import loopback
from switchyard.local.airflow_api import AirflowApi
from switchyard.settings import Settings

DAG_ID = "switchyard_generation"


@dataclass(frozen=True)
class Stack:
    settings: Settings

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")},
            "SWITCHYARD_ROOT": self.settings.root,
            "SWITCHYARD_AIRFLOW_PORT": str(self.settings.airflow_port),
            "SWITCHYARD_KAFKA_PORT": str(self.settings.kafka_port),
            "SWITCHYARD_LINGER_SECONDS": str(self.settings.linger_seconds),
            "SWITCHYARD_DRIVER_MEMORY": "1g",
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
        document: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return document

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


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = Settings(
        root=str(tmp_path_factory.mktemp("stack") / "root"),
        airflow_port=loopback.pick_free_port(),
        kafka_port=loopback.pick_free_port(),
        linger_seconds=2,
    )
    stack = Stack(settings)
    started = stack.run("up", "--detach")
    assert started.returncode == 0, started.stdout + started.stderr
    yield stack
    stack.run("down")
