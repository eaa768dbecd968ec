"""Notices that a driver makes no progress: no batch ends, no task of Spark advances, no file is touched.

A batch of a long history may take minutes. Only one in which nothing moves is stuck.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from switchyard.errors import SwitchyardError
from switchyard.health.checks import explain_standstill
from switchyard.stream.attempt import Attempt
from switchyard.stream.runner import BatchRunner

QUIET_SECONDS = 2.0
"""Batches that come faster are sign enough; Spark is asked only after so long without one."""
LOST_EXECUTORS = timedelta(seconds=30)
"""Executors that are gone for so long do not come back: after its restart Spark's master does not know the driver."""
BUSY_SHARE = 0.1
"""Of a core, beside collecting garbage. A JVM whose tasks all wait uses a hundredth."""
_METRICS = (
    "numCompleteTasks",
    "executorRunTime",
    "inputRecords",
    "outputRecords",
    "shuffleReadRecords",
    "shuffleWriteRecords",
    "memoryBytesSpilled",
)


class StallWatch:
    """Keeps the runner's `moved_at` and `executors` up to date, which go into each row of `progress`."""

    def __init__(self, spark: SparkSession, runner: BatchRunner) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        is_dynamic = spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        self._needs_executors = not self._context.isLocal() and not is_dynamic
        self._had_executors = False
        self._runner = runner
        self._signs: list[Any] = []
        sources = self._context.env().metricsSystem().getSourcesByName("JVMCPU")
        self._cpu_gauge = sources.apply(0).metricRegistry().getGauges().get("jvmCpuTime")
        self._pauses = _find_pauses(spark)
        self._used = (0.0, 0.0, 0.0)
        self._is_still = False

    def check(self, attempt: Attempt) -> None:
        """Warn when nothing moves. If it stays like this, raise: the task `stream` then starts the next attempt."""
        self.observe()
        if reason := self.explain_end(attempt.settings.rules.stuck):
            # The query is stopped after its batch, and this batch would not end by itself.
            self._context.cancelAllJobs()
            can_fail = self._runner.is_pending and attempt.history.status_row().generation is not None
            raise SwitchyardError(f"no progress: {reason}{'; then send it again' if can_fail else ''}")
        reason = self.explain(attempt.settings.limits.standstill)
        if reason and not self._is_still:
            attempt.log(reason, "WARNING")
            self._runner.progress.report_alive()
        if self._is_still and not reason:
            attempt.log("rows move again")
        self._is_still = reason is not None

    def observe(self) -> None:
        progress = self._runner.progress
        if self._needs_executors:
            # The driver itself is one of those listed.
            progress.executors = self._context.getExecutorMemoryStatus().size() - 1
            self._had_executors |= progress.executors > 0
        is_idle = not progress.lag and not self._runner.is_awaited and progress.executors != 0
        is_quiet = time.monotonic() - progress.moved_at > QUIET_SECONDS
        # A driver that has lost its executors only waits for others, whatever its JVM does.
        if is_idle or (is_quiet and progress.executors != 0 and self._has_moved()):
            progress.moved_at = time.monotonic()

    def _has_moved(self) -> bool:
        before, self._signs = self._signs, self._read_signs()
        return self._signs != before or (self._context.isLocal() and self._is_busy())

    def _is_busy(self) -> bool:
        """Whether the JVM has computed since the last call, and not only collected garbage.

        With a local master the JVM runs the tasks itself, and Spark shows nothing of a task before its end: the
        metrics of a heartbeat have no names where driver and executor are one JVM.
        """
        before, self._used = self._used, self._read_used()
        computed, collected, passed = (new - old for new, old in zip(self._used, before, strict=True))
        # Some collectors have several threads, but nothing else runs meanwhile.
        return min(computed, passed) - collected > BUSY_SHARE * passed

    def _read_used(self) -> tuple[float, float, float]:
        """Return seconds: CPU time of the JVM, its pauses for garbage collection, and the monotonic clock."""
        collected = sum(gauge.getValue() for gauge in self._pauses) / 1000
        return self._cpu_gauge.getValue() / 1e9, collected, time.monotonic()

    def _read_signs(self) -> list[Any]:
        """Read what changes while Spark works. Each number costs a call to the JVM: some milliseconds in all."""
        stages = self._context.statusStore().activeStages()
        found = [stages.apply(number) for number in range(stages.size())]
        signs: list[Any] = [getattr(stage, name)() for stage in found for name in ("stageId", *_METRICS)]
        return [*signs, self._runner.sink.count_touched_files()]

    def explain(self, patience: timedelta) -> str | None:
        """Return why nothing has moved for so long; None when something has, or no record waits."""
        progress, is_awaited = self._runner.progress, self._runner.is_awaited
        still = timedelta(seconds=time.monotonic() - progress.moved_at)
        return explain_standstill(progress.lag, progress.executors, still, patience, is_awaited)

    def explain_end(self, stuck: timedelta) -> str | None:
        """Return why the driver has to end. Only lost executors are urgent: a cluster may give the first one late."""
        has_lost = self._had_executors and self._runner.progress.executors == 0
        return self.explain(min(stuck, LOST_EXECUTORS) if has_lost else stuck)


def _find_pauses(spark: SparkSession) -> list[Any]:
    """Return the gauge of each garbage collector, in milliseconds. Spark registers them only when it is told to."""
    jvm: Any = spark.sparkContext._jvm
    gauges = jvm.org.apache.spark.metrics.source.JvmSource().metricRegistry().getGauges()
    return [gauges.get(name) for name in gauges.keySet() if name.endswith(".time")]
