"""Read and write the state of the supervisor, for the command line: one small file that is replaced as a whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from switchyard.drivers import processes
from switchyard.layout import Workspace

Phase = Literal["starting", "ready", "failed", "stopping", "stopped"]
SUPERVISOR_MODULE = "switchyard.local.supervisor"


@dataclass
class ComponentState:
    pid: int | None = None
    ready: bool = False
    restarts: int = 0


@dataclass
class State:
    pid: int
    boot: str
    phase: Phase = "starting"
    message: str = ""
    keeps: bool = False
    """Whether replaced generations are kept until it stops"""
    components: dict[str, ComponentState] = field(default_factory=dict)


def state_file(workspace: Workspace) -> Path:
    return workspace.run / "supervisor.json"


def lock_file(workspace: Workspace) -> Path:
    return workspace.run / "supervisor.lock"


def write_state(workspace: Workspace, state: State) -> None:
    path = state_file(workspace)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(state), indent=1))
    draft.replace(path)


def read_state(workspace: Workspace) -> State | None:
    try:
        raw = json.loads(state_file(workspace).read_text())
        components = {name: ComponentState(**part) for name, part in raw.pop("components").items()}
        return State(**raw, components=components)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def supervisor_arguments(workspace: Workspace, demo: bool) -> list[str]:
    return ["-m", SUPERVISOR_MODULE, "--home", str(workspace.home), *([] if demo else ["--no-demo"])]


def is_supervisor(pid: int, workspace: Workspace) -> bool:
    # By the command line: the pid may belong to another process by now.
    command = processes.read_command(pid)
    return SUPERVISOR_MODULE in command and f"--home {workspace.home}" in command


def find_supervisor(workspace: Workspace) -> State | None:
    """Return the state of the supervisor, if it is alive."""
    state = read_state(workspace)
    return state if state is not None and is_supervisor(state.pid, workspace) else None
