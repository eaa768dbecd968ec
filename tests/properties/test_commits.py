"""Appends, summaries, merges, vacuum and log clean-up in any order, also in the midst of each other: nothing is lost,
nothing is there twice, and nobody gets an error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from switchyard.layout import Layout
from switchyard.tables import merging, store
from switchyard.tables.merging import merge_small
from switchyard.tables.progress import Progress, batches, report
from switchyard.upkeep.small_tables import shorten_progress
from switchyard.upkeep.vacuum import vacuum_table

HOUR = timedelta(hours=1)
START = datetime.now(UTC) - timedelta(days=1)
WRITERS = 2

steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, WRITERS - 1)),
    st.tuples(st.sampled_from(["shorten", "merge", "vacuum", "look", "mark"]), st.integers(0, WRITERS - 1)),
)


@dataclass
class World:
    """Two generations, each with a writer that keeps its table open and looks at it only when it commits."""

    layout: Layout
    sent: list[int] = field(default_factory=lambda: [0] * WRITERS)
    marks: int = 0

    def __post_init__(self) -> None:
        self.kept = [store.open_table(self.layout, "progress") for _ in range(WRITERS)]

    def append(self, writer: int) -> None:
        number = self.sent[writer]
        self.sent[writer] += 1
        at = START + timedelta(seconds=number)
        row = Progress(writer, 1, number, at, 1, 1.0, 1, 0, 1, 1, 1, 1, 0, 0, str(number), str(number + 1))
        report(self.layout, row, self.kept[writer])

    def shorten(self, generation: int) -> None:
        shorten_progress(self.layout, generation, START + timedelta(days=1))

    def merge(self, generation: int) -> None:
        """As a driver does it after a batch."""
        table = self.kept[generation]
        table.update_incremental()
        merge_small(self.layout, table, "progress", generation, ["at"], 2**20)

    def vacuum(self, _: int) -> None:
        vacuum_table(self.layout, "progress", now=datetime.now(UTC), retention=HOUR)

    def look(self, writer: int) -> None:
        self.kept[writer].update_incremental()

    def mark(self, _: int) -> None:
        """A number that must be given once."""

        def take_next(table: DeltaTable) -> store.Change:
            return store.Change(markers={"mark": 1 + (table.transaction_version("mark") or 0)})

        self.marks += 1
        store.transact(self.layout, "progress", take_next)

    def age(self) -> None:
        """All that is there was written hours ago: what no version needs may go."""
        hours_ago = (datetime.now(UTC) - 3 * HOUR).timestamp()
        for path in Path(self.layout.table("progress")).rglob("*"):
            os.utime(path, (hours_ago, hours_ago))

    def check(self) -> None:
        for writer in range(WRITERS):
            found = batches(self.layout, writer)
            assert sum(row.inputRows for row in found) == self.sent[writer]
            assert [row.startOffsets for row in found[1:]] == [row.endOffsets for row in found[:-1]]
            assert not found or (found[0].startOffsets, found[-1].endOffsets) == ("0", str(self.sent[writer]))
        assert (store.open_table(self.layout, "progress").transaction_version("mark") or 0) == self.marks


def meet(patch: pytest.MonkeyPatch, others: list[Callable[[], None]]) -> None:
    """Lets others do their work between a look and the commit that follows from it, one at each commit."""
    commit = store._commit

    def commit_late(table: DeltaTable, name: str, change: store.Change) -> None:
        if others:
            others.pop()()
        commit(table, name, change)

    patch.setattr(store, "_commit", commit_late)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(steps, st.lists(steps, max_size=2)), min_size=1, max_size=8))
@example([(("append", 0), []), (("append", 0), []), (("shorten", 0), []), (("append", 0), [])])
@example([(("append", 0), [])] * 3 + [(("shorten", 0), [("append", 0)]), (("append", 0), [("shorten", 0)])])
@example([(("append", 0), [])] * 3 + [(("vacuum", 0), [])] * 3 + [(("append", 1), [("shorten", 0), ("vacuum", 0)])])
@example([(("append", 0), [])] * 4 + [(("merge", 0), [("shorten", 0)]), (("mark", 0), [("mark", 0), ("mark", 0)])])
def test_any_writers_that_meet_in_the_log(plan: list[tuple[tuple[str, int], list[tuple[str, int]]]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "FAN_IN", 2)
        world, others = World(Layout(folder)), list[Callable[[], None]]()
        meet(patch, others)
        for (what, who), in_between in plan:
            world.age()
            others[:] = [lambda other=other: getattr(world, other[0])(other[1]) for other in in_between]  # type: ignore[misc]
            getattr(world, what)(who)
            others.clear()
        world.check()
