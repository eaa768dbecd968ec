"""Whatever is forgotten when, and whatever process dies in between: `joined` is the join of what is not forgotten, and
every record that was read has its one place."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchyard.layout import BIG_TABLES, Layout
from switchyard.offsets import Offsets
from switchyard.tables import store
from switchyard.tables.forgetting import REASON, skip_forgotten
from switchyard.tables.forgotten import add_mark
from switchyard.tables.sink import BatchSink
from switchyard.tables.writer import claim_attempt
from tests import model
from tests.model import Event
from tests.properties.test_batches import (
    arrivals,
    batch_table,
    commit_with_crash,
    crowded_events,
    expected_rows,
    few_events,
    stored_rows,
)
from tests.specs import make_spec

CRASHES = ("none", "after users", "after joined", "replayed")


class Died(BaseException):
    pass


def die(*_: object) -> None:
    raise Died


@dataclass
class World:
    """A generation's tables, the topics behind them, and the process that writes now."""

    layout: Layout
    join_type: str
    sent: list[Event]
    read: list[Event] = field(default_factory=list)
    forgotten: set[Event] = field(default_factory=set)
    marked: set[Event] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.sink = BatchSink(self.layout, make_spec(joinType=self.join_type), claim_attempt(self.layout, 1))

    def mark(self, person: str, count: int) -> None:
        """The person is forgotten up to the end of the topics, which may be ahead of what was read."""
        add_mark(self.layout, person, ends_of(self.sent[:count]), {}, "test")
        self.marked |= {event for event in self.sent[:count] if event.user_id == person}

    def forget(self, dies_at: str | None = None, meanwhile: Sequence[tuple[str, int]] = ()) -> None:
        """Between two batches. Who dies at a table leaves the rest to a successor, who may find more to do."""
        if dies_at is not None:
            self.sink.writers[dies_at].commit_mark = die  # type: ignore[method-assign, assignment]
            with suppress(Died):
                self.sink.carry_out_marks()
            self.restart()
        for mark in meanwhile:
            self.mark(*mark)
        self.sink.carry_out_marks()
        self.forgotten = set(self.marked)

    def run(self, batch_id: int, batch: list[Event], crash: str) -> None:
        rows = skip_forgotten(batch_table(self.read, batch, self.join_type), self.sink.marks(), self.sink.spec)
        self.sink = commit_with_crash(self.layout, self.sink, batch_id, rows, crash)
        self.read += batch

    def check(self) -> None:
        """The tables as they are between two batches, by the marks that were carried out."""
        remembered = [event for event in self.read if event not in self.forgotten]
        assert stored_rows(self.layout) == expected_rows(remembered, self.join_type)
        assert stored_events(self.layout, ("users", "accounts")) == Counter(map(place_of, remembered))
        skipped = Counter(map(place_of, (event for event in self.read if event in self.forgotten)))
        assert stored_events(self.layout, ("rejects",)) == skipped
        assert {(row["value"], row["reason"]) for row in store.read_rows(self.layout, "rejects")} <= {(None, REASON)}


def place_of(event: Event) -> tuple[str, int, int]:
    return f"{event.side}s", event.partition, event.offset


def ends_of(events: list[Event]) -> Offsets:
    ends: Offsets = {"users": {0: 0, 1: 0}, "accounts": {0: 0, 1: 0}}
    for event in events:
        ends[f"{event.side}s"][event.partition] = event.offset + 1
    return ends


def stored_events(layout: Layout, names: tuple[str, ...]) -> Counter[tuple[str, int, int]]:
    rows = chain.from_iterable(store.read_rows(layout, name) for name in names)
    return Counter((row["topic"], row["partition"], row["offset"]) for row in rows)


@pytest.mark.parametrize("join_type", sorted(model.JOINS))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=arrivals(few_events() | crowded_events()), data=st.data())
def test_joined_is_the_join_of_what_is_not_forgotten(
    join_type: str, batches: list[list[Event]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World(Layout(root), join_type, list(chain.from_iterable(batches)))
        for batch_id, batch in enumerate(batches):
            marks = st.lists(
                st.tuples(st.sampled_from("abcd"), st.integers(len(world.read), len(world.sent))), max_size=2
            )
            for mark in data.draw(marks, label="forget"):
                world.mark(*mark)
            if data.draw(st.booleans(), label="sees it"):
                dies_at = data.draw(st.sampled_from([None, *BIG_TABLES]), label="dies at")
                world.forget(dies_at, data.draw(marks, label="meanwhile"))
            world.run(batch_id, batch, data.draw(st.sampled_from(CRASHES), label="crash"))
            world.check()
        world.forget()
        world.check()
        assert world.sink.carry_out_marks() is None
