"""The streaming job with a clock that can be put forward and back: its seconds of shift are in the file JUMP_FILE."""

from __future__ import annotations

import datetime as clock
import os
import runpy
from pathlib import Path

from switchyard.layout import PROJECT
from switchyard.stream import attempt, attempt_end, progress_report, promotion, watch_loop
from switchyard.swap import history_store, reconcile
from switchyard.tables import logs

SHIFT = Path(os.environ["JUMP_FILE"])


class JumpingClock(clock.datetime):
    @classmethod
    def now(cls, tz: clock.tzinfo | None = None) -> clock.datetime:  # type: ignore[override]
        return clock.datetime.now(tz) + clock.timedelta(seconds=float(SHIFT.read_text()))


for module in (reconcile, attempt, watch_loop, promotion, attempt_end, progress_report, history_store, logs):
    module.datetime = JumpingClock  # type: ignore[attr-defined]
runpy.run_path(str(PROJECT / "jobs" / "stream_generation.py"), run_name="__main__")
