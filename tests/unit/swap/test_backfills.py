"""What an order of a backfill may say, and how snapshots appear in the history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import FencedError, InputError
from switchyard.kafka.topics import TopicReader
from switchyard.layout import BIG_TABLES, Layout
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap import transitions
from switchyard.swap.backfills import BackfillHandler, parse_order, settle_snapshot
from switchyard.swap.control_message import check_id
from switchyard.swap.generations import keep_spec
from switchyard.swap.history import Event, Request, StatusRow
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import describe, open_history
from switchyard.tables import store
from switchyard.tables.progress import Progress, bulk_rate, report
from switchyard.tables.removal import generation_files
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.writer import Revision, TableWriter, claim_attempt
from tests.specs import make_spec

DEFAULTS = Target("users", "accounts", "left")


def test_what_is_left_out_is_what_is_active_or_the_default() -> None:
    order = parse_order({"users_topic": " people ", "accounts_topic": "", "join_type": None, "from": None})
    assert order.target(StatusRow(), DEFAULTS) == Target("people", "accounts", "left")
    assert order.target(StatusRow(3, Target("a", "b", "asof")), DEFAULTS) == Target("people", "b", "asof")
    assert (order.start.text, order.end.text) == ("earliest", "latest")


@pytest.mark.parametrize(("given", "taken"), [("LEFT_OUTER", "left"), ("asof", "asof"), (" Inner ", "inner")])
def test_join_types_are_normalised(given: str, taken: str) -> None:
    assert parse_order({"join_type": given}).joinType == taken


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"join_type": "outer"}, "'outer' is not a join type; use left, inner, natural, asof"),
        ({"users_topic": 7}, "users_topic must be a text"),
        ({"from": {"users": {"0": 1}}}, "from must be a text"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "is not before"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_order(fields)


@pytest.mark.parametrize("given", ["backfill-x", "publish-x"])
def test_the_ids_of_backfills_are_not_for_messages(given: str) -> None:
    with pytest.raises(InputError, match="may not begin with"):
        check_id(given)


def test_a_backfill_is_ordered_once_settled_once_and_told_in_plain_words(layout: Layout, settings: Settings) -> None:
    history = open_history(layout)

    def order() -> int:
        return take_order(history, "backfill-a", "to latest, 7 records").generation

    assert (order(), order()) == (1, 1)
    snapshot = history.ledger().snapshots[1]
    assert settle_snapshot(settings, history, snapshot, Event.FAILED, "the disk is full").event is Event.FAILED
    assert settle_snapshot(settings, history, snapshot, Event.PLANNED, "too late").event is Event.FAILED
    assert [describe(entry) for entry in history.ledger().entries] == [
        "backfilling generation 1: users and accounts, left join, from earliest: to latest, 7 records",
        "generation 1 failed: the disk is full",
        "generation 1 is closed: it had no driver yet",
    ]
    assert (history.ledger().requests, history.ledger().next_generation) == ((), 2)
    with pytest.raises(ValueError, match="not the id of a backfill"):
        take_order(history, "m-1")


def take_order(history: HistoryStore, swap_id: str, detail: str = "") -> Request:
    transitions.take_command(
        history, swap_id, "test", lambda command: (command.ask_for_snapshot(DEFAULTS, "earliest", detail), None)
    )
    snapshot = history.ledger().find_command(swap_id)
    assert snapshot is not None
    return snapshot


def order_with_files(settings: Settings, swap_id: str) -> tuple[Request, list[Path]]:
    """A backfill whose job has started: users are committed, accounts are only written."""
    layout, history = settings.layout, open_history(settings.layout)
    snapshot = take_order(history, swap_id)
    transitions.note(history, snapshot.entry(Event.STARTING))
    attempt = claim_attempt(layout, snapshot.generation)
    places = []
    for name in ("users", "accounts"):
        writer = TableWriter(layout, name, snapshot.generation, attempt)
        written = writer.write(SCHEMAS[name].empty_table())
        places.append(Path(layout.table(name), written.path))
        if name == "users":
            writer.commit(0, lambda table, written=written: Revision([written]))  # type: ignore[misc]
    return snapshot, places


def live_files(layout: Layout, generation: int) -> int:
    return sum(len(generation_files(store.open_table(layout, name), generation)) for name in BIG_TABLES)


def test_a_backfill_that_failed_leaves_nothing_in_the_tables_and_no_file_that_was_never_committed(
    layout: Layout, settings: Settings
) -> None:
    snapshot, (committed, uncommitted) = order_with_files(settings, "backfill-a")
    other, (_, kept) = order_with_files(settings, "backfill-b")
    assert live_files(layout, snapshot.generation) == 1
    settle_snapshot(settings, open_history(layout), snapshot, Event.FAILED, "the disk is full")
    assert live_files(layout, snapshot.generation) == 0
    assert (committed.exists(), uncommitted.exists(), kept.exists()) == (True, False, True)
    assert live_files(layout, other.generation) == 1


def test_a_finished_snapshot_keeps_its_rows_and_is_fenced(layout: Layout, settings: Settings) -> None:
    snapshot, places = order_with_files(settings, "backfill-a")
    writer = TableWriter(layout, "users", 1, 1)
    settle_snapshot(settings, open_history(layout), snapshot, Event.PLANNED, "built")
    assert (live_files(layout, 1), all(place.exists() for place in places)) == (1, True)
    assert open_history(layout).ledger().is_retired(1)
    with pytest.raises(FencedError):
        writer.refresh()


def test_a_snapshot_that_was_removed_cannot_be_published_even_while_its_files_are_still_going(
    layout: Layout, settings: Settings
) -> None:
    history = open_history(layout)
    snapshot, _ = order_with_files(settings, "backfill-a")
    keep_spec(layout, make_spec(snapshot.generation, DEFAULTS))
    settle_snapshot(settings, history, snapshot, Event.PLANNED, "built")
    later = datetime.now(UTC) + timedelta(days=30)
    assert transitions.try_remove(history, snapshot.generation, later, timedelta(days=7))
    with TopicReader({"bootstrap.servers": "127.0.0.1:1"}) as reader:
        refused = BackfillHandler(settings, reader).publish(snapshot.generation, "publish-a", "test").outcome
    assert refused is not None
    assert (refused.event, "were removed after their keep time" in refused.detail) == (Event.REJECTED, True)
    assert history.status_row().generation is None


def test_the_speed_of_a_backfill_says_nothing_about_a_stream(layout: Layout) -> None:
    now = datetime.now(UTC)
    for generation, rows, rate in ((1, 10_000, 5_000.0), (2, 180_000, 90_000.0)):
        report(layout, Progress(generation, 1, 0, now, rows, rate, 2_000, 0, 1, 1, 1, 1, 0, 0, "{}", "{}"))
    assert bulk_rate(layout) == 47_500.0
    assert bulk_rate(layout, without=[2]) == 5_000.0
    assert bulk_rate(layout, without={1: 0, 2: 0}) is None
