"""Signs of work in a real Spark session: a long task that works is told from one that waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.stream import stall
from switchyard.stream.runner import BatchRunner
from switchyard.stream.stall import BUSY_SHARE, StallWatch
from tests.specs import make_spec
from tests.waiting import eventually

WAITING = "java_method('java.lang.Thread', 'sleep', 600000L)"
WORKING = "concat(hash(id), if(id % 100000 = 0, java_method('java.lang.Thread', 'sleep', 1L), ''))"
"""Sleeps for moments, because only a task that sleeps notices that it is cancelled."""


@pytest.fixture
def runner(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> BatchRunner:
    monkeypatch.setattr(stall, "QUIET_SECONDS", 0.0)
    runner = BatchRunner(Settings(root=layout.root), make_spec(), 1)
    runner.progress.broker_ends = {"users": {0: 7}}
    return runner


@contextmanager
def running_task(spark: SparkSession, expression: str) -> Iterator[None]:
    """One task of Spark that computes an expression for each of very many rows, until it is cancelled."""

    def run() -> None:
        with pytest.raises(Exception, match="cancelled"):
            spark.range(0, 10**11, 1, 1).selectExpr(f"{expression} AS done").write.format("noop").mode("append").save()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(spark.sparkContext.statusTracker().getActiveStageIds)
        yield
    finally:
        spark.sparkContext.cancelAllJobs()
        thread.join(30)
        eventually(lambda: not spark.sparkContext.statusTracker().getActiveStageIds())
    assert not thread.is_alive()


def has_moved(watched: StallWatch, runner: BatchRunner) -> bool:
    before = runner.progress.moved_at
    watched.observe()
    return runner.progress.moved_at > before


def test_a_long_task_that_works_moves(spark: SparkSession, runner: BatchRunner) -> None:
    watched = StallWatch(spark, runner)
    with running_task(spark, WORKING):
        for _ in range(3):
            eventually(lambda: has_moved(watched, runner))
        assert runner.progress.executors is None


def test_a_task_that_waits_does_not_move_and_its_job_can_be_cancelled(spark: SparkSession, runner: BatchRunner) -> None:
    watched = StallWatch(spark, runner)
    with running_task(spark, WAITING):
        # Over a fraction of a second a JVM that only looks at itself may seem busy.
        reason = eventually(lambda: watched.observe() or watched.explain(timedelta(seconds=3)), every_seconds=1)
        assert reason.startswith("7 records wait")
        assert watched.explain_end(timedelta(seconds=3)) is not None
        assert watched.explain(timedelta(minutes=1)) is None
        runner.sink.writers["users"].touched_files += 1
        assert has_moved(watched, runner)
        runner.progress.broker_ends = {}
        assert has_moved(watched, runner), "it is not known whether anything waits"
        runner.is_awaited = True
        reason = eventually(lambda: watched.observe() or watched.explain_end(timedelta(seconds=3)), every_seconds=1)
        assert reason.startswith("the broker does not answer, and for"), "a swap waits for records all the same"


def test_a_jvm_that_only_collects_garbage_does_not_move(spark: SparkSession, runner: BatchRunner) -> None:
    watched, enough = StallWatch(spark, runner), threading.Event()
    jvm: Any = spark.sparkContext._jvm

    def collect() -> None:
        while not enough.is_set():
            jvm.System.gc()

    collecting = threading.Thread(target=collect)
    with running_task(spark, WAITING):
        collecting.start()
        try:
            used = watched._read_used()
            reason = eventually(lambda: watched.observe() or watched.explain(timedelta(seconds=3)), every_seconds=1)
            computed, _, passed = (new - old for new, old in zip(watched._read_used(), used, strict=True))
        finally:
            enough.set()
            collecting.join()
    assert reason.startswith("7 records wait")
    assert computed > BUSY_SHARE * passed, "the processors were busy all the time"
