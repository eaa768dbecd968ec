"""A server of one machine: a program with its data in one folder, which any process of this installation may stop."""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from psutil import Process

from switchyard.drivers import processes
from switchyard.errors import SwitchyardError


class Server(ABC):
    """One server below one folder. Its pid is kept there, so the process that stops it need not have started it."""

    name: str
    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.log = self.folder / f"{self.name}.log"
        self.pid_file = self.folder / f"{self.name}.pid"
        self.cluster_file = self.folder / "cluster.id"
        # A path on its command line that no other process has there.
        self.command_line_path = self.data
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def prepare(self) -> None:
        """Make the folder and what else the program needs before it starts; leave what exists."""

    @abstractmethod
    def is_answering(self) -> bool: ...

    def start(self) -> None:
        """Start the process and return at once; `wait_until_ready` returns when it answers."""
        if self.is_running():
            return
        self.prepare()
        self._process = processes.launch(self.command(), self.folder, self.log)
        self.pid_file.write_text(str(self._process.pid))

    def is_running(self) -> bool:
        return self.find_pid() is not None

    def wait_until_ready(self, deadline_seconds: float = 60) -> None:
        """Return when the server answers a request; raise when it has ended or the deadline has passed."""
        if not processes.wait_until(lambda: self.is_answering() or not self.is_running(), deadline_seconds):
            raise SwitchyardError(f"the {self.name} did not answer in {deadline_seconds:g} s: see {self.log}.")
        if not self.is_running():
            said = last_line(self.log.read_text(errors="replace")) if self.log.exists() else "it wrote no log"
            raise SwitchyardError(f"the {self.name} ended at once: {said} (see {self.log}).")

    def stop(self, deadline_seconds: float = 30) -> None:
        """Ask the server to end, and kill it at the deadline. Do nothing when it is not running."""
        pid = self.find_pid()
        running = processes.find_process(pid) if pid is not None else None
        if running is not None:
            processes.end(
                lambda: [] if self._has_ended(running) else [running], deadline_seconds, ask_with=self.stop_signal
            )
        self.pid_file.unlink(missing_ok=True)

    def _has_ended(self, running: Process) -> bool:
        """Return whether its port and files are free. Also reap it when it is a child of this process."""
        if self._process is not None and self._process.pid == running.pid:
            return self._process.poll() is not None
        return not processes.is_alive(running)

    def find_pid(self) -> int | None:
        """Return the server's pid, if that process is alive and is the server of this folder."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if str(self.command_line_path) in processes.read_command(pid) else None


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
