"""What the supervisor writes down for other processes."""

from __future__ import annotations

from pathlib import Path

from switchyard.drivers.supervisor_state import read_state
from switchyard.local.supervisor import Supervisor
from switchyard.settings import Settings


def test_the_supervisor_tells_whether_it_keeps(tmp_path: Path) -> None:
    for keeps in (True, False):
        settings = Settings(root=str(tmp_path), keep_generations=keeps)
        settings.workspace.run.mkdir(parents=True, exist_ok=True)
        Supervisor(settings, demo=False)._report("starting")
        state = read_state(settings.workspace)
        assert state is not None
        assert state.keeps == keeps
