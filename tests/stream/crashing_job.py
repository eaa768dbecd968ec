"""The streaming job with a SIGKILL built in: the driver dies for real at the point named by CRASH_POINT.

`<table>:before` dies before the commit of that table in the second batch, `<table>:after` right after it,
`<table>:written` when its file is on disk and no commit names it, `progress:before` before the row that ties them,
`applied:before` after the flip, before the history knows of it.
`loud:PATH` does not die: its JVM logs as the log4j configuration there says.
`stuck:` does not die: each batch has a task of Spark that waits for ever; `stuck:gate` the same for the data gate.
`leak:NAME` does not die: the batch that brings a user of that name fails with an error that quotes the user's values.
"""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from switchyard.layout import PROJECT
from switchyard.stream import progress_report, promotion, runner, session
from switchyard.swap import flip
from switchyard.tables import joined_changes
from switchyard.tables.writer import TableWriter

FIRST_BATCH = 1
place, _, moment = os.environ["CRASH_POINT"].partition(":")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash_in_commit(commit: Callable[..., int]) -> Callable[..., int]:
    def wrapped(self: TableWriter, batch_id: int, revise: Callable[[Any], Any]) -> int:
        is_here = self.name == place and batch_id >= FIRST_BATCH

        def revise_and_die(table: Any) -> Any:
            revision = revise(table)
            if is_here and moment == "written":
                die()
            return revision

        if is_here and moment == "before":
            die()
        version = commit(self, batch_id, revise_and_die)
        if is_here and moment == "after":
            die()
        return version

    return wrapped


def crash_in_report(report: Callable[..., None]) -> Callable[..., None]:
    def wrapped(layout: Any, progress: Any, *table: Any) -> None:
        if place == "progress" and progress.batchId >= FIRST_BATCH and progress.startOffsets:
            die()
        report(layout, progress, *table)

    return wrapped


def crash_after_flip(try_flip: Callable[..., bool]) -> Callable[..., bool]:
    def wrapped(*arguments: Any) -> bool:
        has_flipped = try_flip(*arguments)
        if place == "applied" and has_flipped:
            die()
        return has_flipped

    return wrapped


def leak_values(event_rows: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
    def wrapped(*arguments: Any) -> pa.Table:
        rows = event_rows(*arguments)
        if place == "leak" and "name" in rows.column_names and moment in rows["name"].to_pylist():
            pa.array([" ".join(rows["email"].to_pylist() + rows["name"].to_pylist())]).cast(pa.int64())
        return rows

    return wrapped


def wait_for_ever(spark: SparkSession) -> None:
    spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 3600000L)").collect()


def get_stuck(collect: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(rows: Any) -> Any:
        if place == "stuck" and not moment:
            wait_for_ever(rows.sparkSession)
        return collect(rows)

    return wrapped


if (place, moment) == ("stuck", "gate"):
    promotion.examine = lambda spark, *_: wait_for_ever(spark)
if place == "loud":
    session.LOGGING = Path(moment)
runner.collect_if_it_fits = get_stuck(runner.collect_if_it_fits)
joined_changes.event_rows = leak_values(joined_changes.event_rows)
flip.try_flip = crash_after_flip(flip.try_flip)
TableWriter.commit = crash_in_commit(TableWriter.commit)  # type: ignore[method-assign]
progress_report.report = crash_in_report(progress_report.report)
runpy.run_path(str(PROJECT / "jobs" / "stream_generation.py"), run_name="__main__")
