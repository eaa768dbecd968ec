"""One process that the supervisor keeps running; the pause before a restart grows while it keeps dying."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from switchyard.deadline import Deadline
from switchyard.drivers import processes
from switchyard.local.server import Server

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0


def pause_seconds(failures: int) -> float:
    """Return how long to wait before the restart after so many failures in a row."""
    return float(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** max(0, failures - 1)))


class Component:
    def __init__(self, name: str, command: list[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.name = name
        self.log = log
        self.restarts = 0
        self._command = command
        self._env = dict(env)
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._steady = Deadline(STEADY_SECONDS)
        self._restart_at: Deadline | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        self._launch()
        self._steady.restart(STEADY_SECONDS)
        self._restart_at = None

    def _launch(self) -> None:
        self._process = processes.launch(self._command, self._cwd, self.log, self._env)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_steady(self) -> bool:
        """Return whether it has run for so long that a start can no longer be what it is busy with."""
        return self.is_running() and self._steady.has_passed

    def kill(self) -> None:
        """End a process that hangs; `revive` starts it again."""
        if self._process is not None:
            self._process.kill()

    def revive(self) -> str | None:
        """Restart a dead process when its pause is over; return a sentence for the log when there is news."""
        if self.is_running():
            return None
        if self._restart_at is None:
            return self._plan_restart()
        if not self._restart_at.has_passed:
            return None
        # Its children may have outlived it, and would still hold its port.
        if self.pid is not None:
            processes.end_sessions([self.pid], 5)
        self.restarts += 1
        self.start()
        return f"{self.name} was restarted (restart {self.restarts})."

    def ask_to_stop(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def finish(self, deadline_seconds: float) -> None:
        """Wait for the end, then end what is left of the session."""
        processes.wait_until(lambda: not self.is_running(), deadline_seconds)
        if self.pid is not None:
            processes.end_sessions([self.pid], 3)

    def _plan_restart(self) -> str:
        code = self._process.returncode if self._process else None
        # A process that ran for a while is not in a crash loop.
        self._failures = 1 if self._steady.has_passed else self._failures + 1
        pause = pause_seconds(self._failures)
        self._restart_at = Deadline(pause)
        return f"{self.name} ended with code {code}; restarting in {pause:g} s. Its log: {self.log}"


class ServerComponent(Component):
    """A server, which writes its pid file itself so that any process can stop it."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.name, [], {}, server.folder, server.log)
        self.server = server

    @property
    def pid(self) -> int | None:
        return self.server.find_pid()

    def _launch(self) -> None:
        self.server.start()

    def is_running(self) -> bool:
        return self.server.is_running()

    def ask_to_stop(self) -> None:
        """Do nothing yet: servers end last, and `Server.stop` both asks and waits."""

    def finish(self, deadline_seconds: float) -> None:
        self.server.stop(deadline_seconds)
