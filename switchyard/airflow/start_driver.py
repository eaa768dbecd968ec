"""Start a driver and run it to its end, in one of three ways: submitted here, taken over as a spare, on a cluster.

Each class has `run()`, which returns the exception of a driver that failed; `on_kill()`, which Airflow calls to end the
task; and `exit_code`. After `on_kill()`, `run()` raises the exception instead, and the task judges nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowException

from switchyard.airflow.watchdog import Pulse, watching
from switchyard.drivers.clusters import find_exit_code
from switchyard.drivers.processes import wait_until
from switchyard.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from switchyard.drivers.detached_process import DetachedProcess

STOPPED_EXIT_CODE = 128 + signal.SIGTERM
# Airflow sends SIGKILL to a task 5 seconds after SIGTERM; the log should still say how the driver ended.
KILL_PATIENCE_SECONDS = 4.0
FOLLOW_SECONDS = 0.5
TAIL_LINES = 20


class DriverLog:
    """A driver's output as the log of its task; the last lines also go into the error."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._last: deque[str] = deque(maxlen=TAIL_LINES)

    def write(self, line: str) -> None:
        self._last.append(line)
        self._log.info("%s", line)

    def show_new_lines(self, process: DetachedProcess) -> None:
        while lines := process.read_lines():
            for line in lines:
                self.write(line)

    def describe_end(self) -> str:
        return "\nThe end of its output:\n" + "\n".join(self._last) if self._last else ""


class LocalDriver(ABC):
    """A driver here, in a separate session: Airflow kills a task's process group, even in the middle of a batch."""

    def __init__(self, pid_file: Path, log: Logger) -> None:
        self._pid_file = pid_file
        self._log = log
        self._output = DriverLog(log)
        self._process: subprocess.Popen[str] | DetachedProcess | None = None
        self.was_killed = False

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def run_watched(self, settings: Settings, pid: int | None = None) -> Exception | None:
        """Run the driver, and end it when it hangs. With a pid, what that process has written before counts too."""
        pulse = Pulse(self._pid_file, settings.ready_deadline_seconds, settings.hung_seconds, pid)
        with watching(pulse, self._end_hung):
            return self.run()

    def run(self) -> Exception | None:
        self._follow()
        if not self.exit_code:
            return None
        failure = AirflowException(f"The driver ended with code {self.exit_code}.{self._output.describe_end()}")
        if self.was_killed:
            raise failure
        return failure

    @abstractmethod
    def _follow(self) -> None:
        """Log the driver's output until the driver has ended."""

    def _end_hung(self, silence_seconds: float) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            self._log.warning("The driver was silent for %.0f s; it is ended and started again.", silence_seconds)
            # A driver that hangs would not answer SIGTERM either.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def on_kill(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        self.was_killed = True
        # The JVM around the Python process would end in the middle of a batch.
        target = self._find_driver(process.pid) or process.pid
        self._log.info("Asking the driver (pid %s) to finish its batch and end.", target)
        with suppress(ProcessLookupError):
            os.kill(target, signal.SIGTERM)
        if not wait_until(lambda: process.poll() is not None, KILL_PATIENCE_SECONDS):
            self._log.info("The driver is still finishing its batch; it ends by itself.")

    def _find_driver(self, session: int) -> int | None:
        """Return the pid the driver wrote, if that process belongs to this spark-submit, not to another attempt."""
        try:
            pid = int(self._pid_file.read_text())
            return pid if os.getsid(pid) == session else None
        except (OSError, ValueError):
            return None


class SubmittedDriver(LocalDriver):
    """A driver that this task starts with spark-submit."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], pid_file: Path, log: Logger) -> None:
        super().__init__(pid_file, log)
        self._command = command
        self._environment = environment

    def _follow(self) -> None:
        # Not as a context: when Airflow ends the task, the driver goes on with its batch, and nobody waits for it.
        self._process = process = subprocess.Popen(
            self._command,
            env={**os.environ, **self._environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if process.stdout is not None:
            for line in process.stdout:
                self._output.write(line.strip())
            process.stdout.close()
        process.wait()


class SpareDriver(LocalDriver):
    """A driver that another task has started as a spare."""

    def __init__(self, process: DetachedProcess, pid_file: Path, log: Logger) -> None:
        super().__init__(pid_file, log)
        self._process: DetachedProcess = process

    def _follow(self) -> None:
        while self._process.poll() is None:
            self._output.show_new_lines(self._process)
            time.sleep(FOLLOW_SECONDS)
        self._output.show_new_lines(self._process)


class ClusterDriver:
    """A driver that a cluster starts on another machine."""

    # `execute` keeps the id of the driver, so that the next try of the task follows the one that runs.
    def __init__(self, execute: Callable[[], None], kill: Callable[[], None]) -> None:
        self._execute = execute
        self._kill = kill
        self.was_killed = False
        self.exit_code: int | None = None

    def run(self) -> Exception | None:
        try:
            self._execute()
        except (AirflowException, RuntimeError) as failure:
            if self.was_killed:
                raise
            self.exit_code = find_exit_code(str(failure))
            return failure
        self.exit_code = 0
        return None

    def on_kill(self) -> None:
        self.was_killed = True
        self._kill()
