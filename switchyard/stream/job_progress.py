"""Report how far a batch job is: lines in the job's log while Spark works on a phase, one in `logs` after it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

LOG_SECONDS = 5.0
log = logging.getLogger("switchyard.backfill")


def describe_part(phase: str, tasks: tuple[int, int], records: int, seconds: float) -> str:
    """Estimate the records from the tasks: while they run, Spark tells only which ones are done."""
    done, total = tasks
    about = records * done // max(total, 1)
    return f"{phase}: about {about} of {records} records, {100 * done // max(total, 1)} %, {_rate(about, seconds)}"


def describe_whole(phase: str, records: int, seconds: float) -> str:
    return f"{phase}: {records} records in {seconds:.1f} s, {_rate(records, seconds)}"


def _rate(records: int, seconds: float) -> str:
    return f"{records / max(seconds, 0.001):.0f} a second"


@dataclass(frozen=True)
class JobProgress:
    spark: SparkSession
    report: Callable[[str], None]

    @contextmanager
    def phase(self, name: str, records: int) -> Iterator[None]:
        began, done = time.monotonic(), threading.Event()
        log.info("%s: %s records", name, records)

        def watch() -> None:
            while not done.wait(LOG_SECONDS):
                log.info("%s", describe_part(name, self._count_tasks(), records, time.monotonic() - began))

        thread = threading.Thread(target=watch, name="job progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        self.report(describe_whole(name, records, time.monotonic() - began))

    def _count_tasks(self) -> tuple[int, int]:
        """Count the finished tasks and all tasks of the stages that run now."""
        tracker = self.spark.sparkContext.statusTracker()
        stages = [info for number in tracker.getActiveStageIds() if (info := tracker.getStageInfo(number))]
        return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
