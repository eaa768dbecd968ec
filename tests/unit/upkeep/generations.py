"""Generations that become active, and write rows as drivers do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from switchyard.layout import BIG_TABLES, Layout
from switchyard.policies import Rules, Target
from switchyard.swap import transitions
from switchyard.swap.generations import keep_spec
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.progress import Progress, report
from switchyard.tables.writer import Revision, TableWriter, claim_attempt
from tests import histories
from tests.specs import make_spec

NOW = datetime.now(UTC)
AT_ONCE = Rules(dwell=timedelta(), linger=timedelta())


def target_of(generation: int) -> Target:
    return Target("users", f"accounts-{generation}", "left")


def activate(history: HistoryStore, generation: int) -> None:
    """Make a generation active; the one before retires at once."""
    before = history.status_row().generation
    histories.activate(history, f"s{generation}", target_of(generation), generation, rules=AT_ONCE)
    if before is not None:
        later = datetime.now(UTC)
        assert transitions.try_retire(history, before, "", later, AT_ONCE, lambda _: later)


def begin(layout: Layout, generation: int) -> TableWriterSet:
    keep_spec(layout, make_spec(generation, target_of(generation)))
    Path(layout.checkpoint(generation)).mkdir(parents=True)
    return TableWriterSet(layout, generation)


class TableWriterSet:
    """A generation that commits one user and one account row in each batch and reports it."""

    def __init__(self, layout: Layout, generation: int) -> None:
        self.layout, self.generation = layout, generation
        self.attempt = claim_attempt(layout, generation)
        self.writers = {name: TableWriter(layout, name, generation, self.attempt) for name in BIG_TABLES}

    def commit(self, batch_id: int, tables: tuple[str, ...] = ("users", "accounts")) -> None:
        for name in tables:
            row = {"userId": f"u{batch_id}", "ts": NOW, "topic": name, "partition": 0, "offset": batch_id}
            rows = store.rows_to_arrow(name, [row | {"generation": self.generation}])
            writer = self.writers[name]
            writer.commit(batch_id, lambda _, rows=rows, writer=writer: Revision([writer.write(rows)]))  # type: ignore[misc]

    def report(self, batch_id: int, at: datetime, is_batch: bool = True) -> None:
        versions = {f"{name}Version": writer.version for name, writer in self.writers.items()}
        start = f'{{"users": {{"0": {batch_id}}}}}' if is_batch else None
        end = f'{{"users": {{"0": {batch_id + 1}}}}}'
        count = 2 if is_batch else 0
        report(
            self.layout,
            Progress(
                self.generation, self.attempt, batch_id, at, count, 5.0, 7, 0, **versions,
                rejectedRows=0, tombstones=0, startOffsets=start, endOffsets=end,
            ),
        )  # fmt: skip
