"""What an order of a backfill may say, and how snapshots appear in the history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from switchyard import protocol
from switchyard.backfills import parse_wish, settle_build
from switchyard.control import check_id
from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.stories import describe, open_book
from switchyard.swaps import Event, Standing, Target
from switchyard.tables.progress import Progress, best_rate, report

DEFAULTS = Target("users", "accounts", "left")


def test_what_is_left_out_is_what_is_active_or_the_default() -> None:
    wish = parse_wish({"users_topic": " people ", "accounts_topic": "", "join_type": None, "from": None})
    assert wish.target(Standing(), DEFAULTS) == Target("people", "accounts", "left")
    assert wish.target(Standing(3, Target("a", "b", "asof")), DEFAULTS) == Target("people", "b", "asof")
    assert (wish.start.text, wish.end.text) == ("earliest", "latest")


@pytest.mark.parametrize(("given", "taken"), [("LEFT_OUTER", "left"), ("asof", "asof"), (" Inner ", "inner")])
def test_join_types_are_normalised(given: str, taken: str) -> None:
    assert parse_wish({"join_type": given}).joinType == taken


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
        parse_wish(fields)


@pytest.mark.parametrize("given", ["backfill-x", "publish-x"])
def test_the_ids_of_backfills_are_not_for_messages(given: str) -> None:
    with pytest.raises(InputError, match="may not begin with"):
        check_id(given)


def test_a_build_is_ordered_once_settled_once_and_told_in_plain_words(layout: Layout) -> None:
    settings, book = Settings(root=layout.root), open_book(layout)

    def order() -> int:
        return protocol.order_build(
            book,
            "backfill-a",
            choose=lambda ledger, standing: DEFAULTS,
            start="earliest",
            requested_by="test",
            detail="to latest, 7 records",
        ).generation

    assert (order(), order()) == (1, 1)
    build = book.ledger().builds[1]
    assert settle_build(settings, book, build, Event.FAILED, "the disk is full").event is Event.FAILED
    assert settle_build(settings, book, build, Event.PLANNED, "too late").event is Event.FAILED
    assert [describe(entry) for entry in book.ledger().entries] == [
        "backfilling generation 1: users and accounts, left join, from earliest: to latest, 7 records",
        "generation 1 failed: the disk is full",
        "generation 1 is closed: it had no driver yet",
    ]
    assert (book.ledger().requests, book.ledger().next_generation) == ((), 2)
    with pytest.raises(ValueError, match="not the id of a build"):
        protocol.order_build(book, "m-1", choose=lambda *_: DEFAULTS, start="earliest", requested_by="test", detail="")


def test_the_speed_of_a_backfill_says_nothing_about_a_stream(layout: Layout) -> None:
    now = datetime.now(UTC)
    for generation, rate in ((1, 5_000.0), (2, 90_000.0)):
        report(layout, Progress(generation, 1, 0, now, 10, rate, 1, 0, 1, 1, 1, 1, 0, 0, "{}", "{}"))
    assert best_rate(layout) == 90_000.0
    assert best_rate(layout, without=[2]) == 5_000.0
    assert best_rate(layout, without={1: 0, 2: 0}) is None
