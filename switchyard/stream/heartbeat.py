"""How a driver shows that it lives: rows of `progress` for other machines, a touched file for the task beside it."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from switchyard.stream.attempt import Attempt
from switchyard.stream.runner import BatchRunner

PROBATION_SECONDS = 1.0
"""Between two heartbeats while a lingering generation waits for signs of life, to take over without them."""


@dataclass(frozen=True)
class Heartbeat:
    attempt: Attempt
    runner: BatchRunner

    def report_if_due(self, is_on_probation: bool) -> None:
        """Write a row when no batch has written one for long enough. Raise FencedError if a newer attempt is there."""
        every = PROBATION_SECONDS if is_on_probation else self.attempt.settings.heartbeat_seconds
        if time.monotonic() - self.runner.progress.reported_at > every:
            self._check_tables_when_idle()
            self.runner.progress.report_alive()

    def _check_tables_when_idle(self) -> None:
        """Between batches nobody else would notice a newer attempt, or a person to forget; a batch looks itself."""
        if self.runner.busy.acquire(blocking=False):
            try:
                self.runner.sink.check_fence()
                is_behind = self.runner.sink.has_new_marks()
            finally:
                self.runner.busy.release()
            if is_behind:
                self.runner.forget_soon()

    def touch_pid_file(self) -> None:
        """Show the task `stream` that this process lives, unless a newer attempt has put its own pid there."""
        path = self.attempt.settings.workspace.driver_pid(self.attempt.generation)
        with contextlib.suppress(OSError):
            if path.read_text() == str(os.getpid()):
                os.utime(path)
