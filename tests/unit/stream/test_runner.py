"""The batches of a generation whose swap is pending, and the main thread that looks at each of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import DataFrame

from switchyard.errors import SwitchyardError
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.stream.rehearsal import SYNTHETIC_SPEC
from switchyard.stream.runner import BatchRunner
from switchyard.tables.writer import claim_attempt
from tests.waiting import eventually


class Counting(BatchRunner):
    """Its batches write nothing."""

    def _run(self, rows: DataFrame, batch_id: int) -> None:
        self.done = batch_id


@pytest.fixture
def runner(layout: Layout) -> Counting:
    made = Counting(Settings(root=layout.root), SYNTHETIC_SPEC, claim_attempt(layout, SYNTHETIC_SPEC.generation))
    made.is_pending = True
    return made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_batch_of_a_pending_generation_waits_until_the_one_before_it_was_looked_at(
    runner: Counting, pool: ThreadPoolExecutor
) -> None:
    runner(None, 0)  # type: ignore[arg-type]
    assert not runner.batch_seen.is_set()
    second = pool.submit(runner, None, 1)  # type: ignore[arg-type]
    assert not second.done()
    with runner.busy:
        assert runner.done == 0, "it does not even hold the lock that the main thread takes for the proof"
    runner.batch_seen.set()
    second.result(10)
    assert runner.done == 1


def test_a_batch_that_waits_gives_way_when_the_driver_stops(runner: Counting, pool: ThreadPoolExecutor) -> None:
    runner(None, 0)  # type: ignore[arg-type]
    second = pool.submit(runner, None, 1)  # type: ignore[arg-type]
    runner.stopping.set()
    with pytest.raises(SwitchyardError, match="the driver is stopping"):
        second.result(10)


def test_after_the_flip_nobody_waits(runner: Counting) -> None:
    runner.is_pending = False
    runner(None, 0)  # type: ignore[arg-type]
    assert eventually(runner.batch_seen.is_set)
    runner(None, 1)  # type: ignore[arg-type]
    assert runner.done == 1
