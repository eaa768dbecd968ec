"""Whatever the events, their order, the batching and the crashes: the Delta table `joined` is the model's join."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchyard.errors import FencedError
from switchyard.layout import Layout
from switchyard.records import LEFT
from switchyard.tables import joined_changes, store
from switchyard.tables.joined_writer import commit_joined
from switchyard.tables.sink import BatchSink
from switchyard.tables.writer import claim_attempt
from tests import model
from tests.model import Event
from tests.specs import make_spec

CRASHES = ("none", "before", "after users", "after joined", "replayed")
SIDES = ("user", "account")
FAN_OUT = 5
"""A crowded history has at least so many pairs for each record."""
Drawn = tuple[str, str, int, int]
"""Side, userId, second and partition of an event"""


def few_events() -> st.SearchStrategy[list[Drawn]]:
    one = st.tuples(st.sampled_from(SIDES), st.sampled_from("abc"), st.integers(0, 6), st.integers(0, 1))
    return st.lists(one, max_size=16)


@st.composite
def crowded_events(draw: st.DrawFn) -> list[Drawn]:
    """One or two people with many events on both sides. Only sizes and a seed are drawn: to draw each event is slow."""
    sizes = st.integers(2 * FAN_OUT, 20)
    counts = [(user_id, side, draw(sizes)) for user_id in draw(st.sampled_from(["a", "ab"])) for side in SIDES]
    shuffle = random.Random(draw(st.integers(0, 999)))
    events = [
        (side, user_id, shuffle.randrange(9), shuffle.randrange(2))
        for user_id, side, count in counts
        for _ in range(count)
    ]
    shuffle.shuffle(events)
    return events


@st.composite
def arrivals(draw: st.DrawFn, histories: st.SearchStrategy[list[Drawn]]) -> list[list[Event]]:
    """Events of both topics in batches: offsets count up in each partition, timestamps are in any order."""
    drawn = draw(histories)
    following: dict[tuple[str, int], int] = defaultdict(int)
    events = []
    for side, user_id, second, partition in drawn:
        events.append(Event(side, user_id, second, partition, following[side, partition]))
        following[side, partition] += 1
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=4)))
    return [events[low:high] for low, high in zip([0, *cuts], [*cuts, len(events)], strict=True)]


def batch_table(before: list[Event], batch: list[Event], join_type: str) -> pa.Table:
    """What the streaming query hands to a batch: its events, and the pairs of which one side is new."""
    everything = [*before, *batch]
    users, accounts = ([e for e in everything if e.side == side] for side in SIDES)
    new = set(batch)
    pairs = [p for p in model.join("inner", users, accounts) if not new.isdisjoint(p)]
    if join_type == "asof":
        pairs = [(u, a) for u, a in pairs if u.second <= a.second]
    rows = [
        {"kind": event.side} | model.row_of((event, None) if event.side == "user" else (None, event)) for event in batch
    ]
    rows += [{"kind": "pair"} | model.row_of(pair) for pair in pairs]
    return pa.Table.from_pylist(rows, schema=joined_changes.BATCH_SCHEMA)


def commit_with_crash(layout: Layout, sink: BatchSink, batch_id: int, rows: pa.Table, crash: str) -> BatchSink:
    """Runs a batch the way a driver that dies at the given point, and its successor, would."""
    if crash == "none":
        sink.commit_arrow(batch_id, rows)
        return sink
    batch = joined_changes.split_batch(rows)
    if crash == "after users":
        sink.commit_appended("users", batch_id, joined_changes.event_rows(batch, LEFT, "users"))
    elif crash == "after joined":
        commit_joined(sink.writers["joined"], batch_id, joined_changes.joined_changes(batch, sink.spec.joinType))
    elif crash == "replayed":
        sink.commit_arrow(batch_id, rows)
    successor = BatchSink(layout, sink.spec, claim_attempt(layout, sink.spec.generation))
    successor.commit_arrow(batch_id, rows)
    return successor


@pytest.mark.parametrize("join_type", sorted(model.JOINS))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=arrivals(few_events()), data=st.data())
def test_joined_is_the_join_of_what_was_consumed(
    join_type: str, batches: list[list[Event]], data: st.DataObject
) -> None:
    check_batches(join_type, batches, data)


@pytest.mark.parametrize("join_type", sorted(model.JOINS))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=arrivals(crowded_events()), data=st.data())
def test_few_people_with_many_events_are_joined_alike(
    join_type: str, batches: list[list[Event]], data: st.DataObject
) -> None:
    """A batch has many times more pairs than records, and revises rows by the dozen."""
    events = [event for batch in batches for event in batch]
    assert len(expected_rows(events, "inner")) >= FAN_OUT * len(events)
    check_batches(join_type, batches, data)


def check_batches(join_type: str, batches: list[list[Event]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        sink = BatchSink(layout, make_spec(joinType=join_type), claim_attempt(layout, 1))
        before: list[Event] = []
        for batch_id, batch in enumerate(batches):
            crash = data.draw(st.sampled_from(CRASHES))
            sink = commit_with_crash(layout, sink, batch_id, batch_table(before, batch, join_type), crash)
            before += batch
        assert stored_rows(layout) == expected_rows(before, join_type)
        assert stored_positions(layout) == sorted((f"{e.side}s", e.partition, e.offset) for e in before)


def stored_rows(layout: Layout) -> list[dict[str, object]]:
    rows = store.read_rows(layout, "joined", columns=joined_changes.ROW_SCHEMA.names, generation=1)
    return model.sort_rows(rows)


def expected_rows(events: list[Event], join_type: str) -> list[dict[str, object]]:
    sides = ([event for event in events if event.side == side] for side in SIDES)
    return model.sort_rows(model.row_of(pair) for pair in model.join(join_type, *sides))


def stored_positions(layout: Layout) -> list[tuple[str, int, int]]:
    return sorted(
        (row["topic"], row["partition"], row["offset"])
        for name in ("users", "accounts")
        for row in store.read_rows(layout, name)
    )


@pytest.mark.parametrize("table", ["users", "accounts", "joined", "rejects"])
def test_a_replaced_attempt_cannot_commit_what_it_had_prepared(tmp_path: str, table: str) -> None:
    layout = Layout(str(tmp_path))
    sink = BatchSink(layout, make_spec(joinType="left"), claim_attempt(layout, 1))
    writer = sink.writers[table]
    prepared = writer.refresh().version()
    claim_attempt(layout, 1)
    rows = pa.Table.from_pylist([{}], schema=store.SCHEMAS[table])
    with pytest.raises(FencedError, match="was replaced by attempt 2"):
        sink.commit_appended(table, 0, rows)
    assert store.read_rows(layout, table) == []
    assert store.open_table(layout, table).version() == prepared + 1
