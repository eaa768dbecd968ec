"""Status, history, progress and the stable names in real Delta tables."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from switchyard.tables.history import Event, Swap

from switchyard.errors import InputError
from switchyard.generations import close_request
from switchyard.layout import Layout
from switchyard.overview import describe_status, judge_heartbeat
from switchyard.settings import Settings
from switchyard.tables import history, names, store
from switchyard.tables.logs import tell
from switchyard.tables.progress import Progress, batches, newest_progress, report
from switchyard.tables.status import Status, flip, read_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = Status(1, "users", "accounts", "left", NOW, "ACTIVE", 0)
SWAP = Swap("s-1", None, "users", "accounts", "left", "latest", "test")


def progress_row(**changes: object) -> Progress:
    row = Progress(1, 1, 0, NOW, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, None, None)
    return replace(row, **changes)  # type: ignore[arg-type]


def test_flip_needs_the_epoch_that_was_read(layout: Layout) -> None:
    assert read_status(layout) is None
    assert flip(layout, 0, FIRST) is not None
    assert flip(layout, 0, replace(FIRST, generation=2)) is None
    assert flip(layout, 1, replace(FIRST, generation=3)) is not None
    status = read_status(layout)
    assert status is not None
    assert (status.generation, status.epoch) == (3, 2)
    assert len(store.read_rows(layout, "status")) == 1


def race_to_flip(root: str, generation: int, barrier: object, won: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    if flip(Layout(root), 1, replace(FIRST, generation=generation)):
        won.put(generation)  # type: ignore[attr-defined]


def test_of_processes_that_race_one_flips(layout: Layout) -> None:
    flip(layout, 0, FIRST)
    context = multiprocessing.get_context("spawn")
    barrier, won = context.Barrier(3), context.Queue()
    racers = [context.Process(target=race_to_flip, args=(layout.root, n, barrier, won)) for n in (2, 3, 4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    winner = won.get(timeout=10)
    assert won.empty()
    status = read_status(layout)
    assert status is not None
    assert (status.generation, status.epoch) == (winner, 2)


def test_numbers_are_given_once_and_kept(layout: Layout) -> None:
    assert history.allocate_generation(layout, SWAP, "") == 1
    assert history.allocate_generation(layout, replace(SWAP, swapId="s-2"), "") == 2
    assert history.allocate_generation(layout, SWAP, "") == 1
    assert history.allocate_generation(layout, replace(SWAP, swapId="s-3"), "") == 3


def test_a_swap_has_one_outcome(layout: Layout) -> None:
    assert history.record(layout, SWAP, Event.APPLIED)
    assert not history.record(layout, SWAP, Event.FAILED)
    assert history.record(layout, SWAP, Event.RETIRED)
    assert not history.record(layout, SWAP, Event.RETIRED)
    assert [row["event"] for row in history.read_history(layout)] == ["APPLIED", "RETIRED"]


def test_what_was_refused_and_is_asked_again_gets_an_id_of_its_own(layout: Layout) -> None:
    assert history.open_swap_id([], "s-1") == "s-1"
    history.record(layout, SWAP, Event.REJECTED)
    rows = history.read_history(layout)
    assert history.open_swap_id(rows, "s-1") == "s-1~2"
    history.record(layout, replace(SWAP, swapId="s-1~2"), Event.APPLIED)
    assert history.open_swap_id(history.read_history(layout), "s-1") == "s-1~2"
    assert [history.first_swap_id(name) for name in ("s-1", "s-1~2", "a~b", "a~b~12")] == ["s-1", "s-1", "a~b", "a~b"]


def test_only_a_retired_generation_can_be_resumed(layout: Layout) -> None:
    swap = replace(SWAP, generation=history.allocate_generation(layout, SWAP, ""))
    with pytest.raises(InputError, match="was resumed by another request"):
        history.allocate_generation(layout, replace(SWAP, swapId="s-2"), "", resumed=1)
    history.record(layout, swap, Event.RETIRED)
    assert history.allocate_generation(layout, replace(SWAP, swapId="s-2"), "", resumed=1) == 1
    with pytest.raises(InputError, match="was resumed by another request"):
        history.allocate_generation(layout, replace(SWAP, swapId="s-3"), "", resumed=1)


def test_a_request_that_ended_early_is_settled_once(layout: Layout) -> None:
    settings = Settings(root=layout.root)
    assert close_request(settings, "run-1", "no broker") == "the request failed: no broker"
    assert close_request(settings, "run-1", "no broker") == "the request was FAILED: no broker"
    history.record(layout, replace(SWAP, swapId="run-2"), Event.REJECTED, "no such topic")
    assert close_request(settings, "run-2", "no broker") == "the request was REJECTED: no such topic"
    assert [row["event"] for row in history.read_history(layout)] == [Event.FAILED, Event.REJECTED]


def test_order_of_requests_counts_and_not_their_numbers() -> None:
    rows = [{"generation": n, "event": Event.REQUESTED} for n in (1, 2, 1)]
    assert history.is_asked_later(rows, 1, than=2)
    assert not history.is_asked_later(rows, 2, than=1)
    assert not history.is_asked_later(rows, 9, than=1)


def test_a_resumed_generation_is_retired_no_more() -> None:
    events = [Event.REQUESTED, Event.APPLIED, Event.RETIRED]
    rows = [{"generation": 1, "event": event} for event in events]
    assert history.is_retired(rows, 1)
    assert not history.is_retired([*rows, {"generation": 1, "event": Event.REQUESTED}], 1)


def test_newest_progress_is_the_last_of_the_newest_attempt(layout: Layout) -> None:
    for attempt, second in ((1, 0), (2, 5), (2, 9)):
        report(layout, progress_row(attempt=attempt, at=NOW + timedelta(seconds=second), batchId=second))
    found = newest_progress(layout, 1)
    assert found is not None
    assert (found.attempt, found.batchId) == (2, 9)
    assert newest_progress(layout, 2) is None


def test_a_replaced_attempt_that_still_reports_is_not_listened_to(layout: Layout) -> None:
    report(layout, progress_row(attempt=2, batchId=11, at=NOW))
    report(layout, progress_row(attempt=1, batchId=10, at=NOW + timedelta(seconds=1)))
    found = newest_progress(layout, 1)
    assert found is not None
    assert (found.attempt, found.batchId) == (2, 11)


def test_a_batch_that_was_reported_twice_counts_once(layout: Layout) -> None:
    for second, rows in ((0, 5), (1, 5), (2, 0)):
        start = "{}" if rows else None
        report(layout, progress_row(at=NOW + timedelta(seconds=second), inputRows=rows, startOffsets=start))
    assert [(row.batchId, row.inputRows) for row in batches(layout, 1)] == [(0, 5)]


def test_stable_names_read_the_active_generation_at_its_reported_version(layout: Layout) -> None:
    for offset, generation in enumerate((1, 2, 1)):
        event = {"userId": "a", "ts": NOW + timedelta(seconds=offset), "topic": "users", "partition": 0}
        store.append_rows(layout, "users", [event | {"generation": generation, "offset": offset}])
    assert names.newest_rows(layout, "users_ui", 10) == []
    flip(layout, 0, FIRST)
    report(layout, progress_row(usersVersion=2))
    assert [row["offset"] for row in names.newest_rows(layout, "users_ui", 10)] == [0]
    report(layout, progress_row(usersVersion=3, at=NOW + timedelta(seconds=1)))
    assert [row["offset"] for row in names.newest_rows(layout, "users_ui", 10)] == [0, 2]
    assert [row["offset"] for row in names.newest_rows(layout, "users_ui", 1)] == [2]


def test_newest_rows_come_from_any_file(layout: Layout) -> None:
    for second in (3, 1, 2, 9, 4):
        moment = NOW + timedelta(seconds=second)
        store.append_rows(layout, "logs", [{"ts": moment, "level": "INFO", "msg": str(second)}])
    assert [row["msg"] for row in names.newest_rows(layout, "orchestrator_logs", 3)] == ["3", "4", "9"]


def test_newest_joined_rows_are_found_when_a_side_is_missing(layout: Layout) -> None:
    """As asof writes them: rows with and without a user in one file."""
    rows = [
        {
            "generation": 1,
            "userId": "a",
            "accountTs": NOW + timedelta(seconds=n),
            "accountPartition": 0,
            "accountOffset": n,
        }
        | ({"userTs": NOW + timedelta(seconds=20)} if n == 0 else {})
        for n in range(20)
    ]
    store.append_rows(layout, "joined", rows)
    flip(layout, 0, FIRST)
    report(layout, progress_row(joinedVersion=1))
    found = names.newest_rows(layout, "final_ui", 10)
    assert [row["accountOffset"] for row in found] == [*range(11, 20), 0]


def test_unknown_name_says_which_there_are(layout: Layout) -> None:
    with pytest.raises(InputError, match="the stable names are users_ui"):
        names.newest_rows(layout, "users", 1)


def test_status_without_a_generation_is_unhealthy(layout: Layout) -> None:
    assert describe_status(Settings(root=layout.root)) == {"healthy": False, "reason": "no generation is active yet"}


def test_status_shows_what_lingers(layout: Layout) -> None:
    swap = replace(SWAP, generation=history.allocate_generation(layout, SWAP, ""))
    history.record(layout, swap, Event.LINGERING)
    flip(layout, 0, replace(FIRST, generation=2))
    report(layout, progress_row(generation=2, at=datetime.now(UTC), lag=7))
    status = describe_status(Settings(root=layout.root))
    assert (status["healthy"], status["lag"], status["lingering"]) == (True, 7, [1])
    history.record(layout, swap, Event.RETIRED)
    assert describe_status(Settings(root=layout.root))["lingering"] == []


@pytest.mark.parametrize(("age", "is_healthy"), [(None, False), (1.0, True), (15.1, False)])
def test_heartbeat_verdict(age: float | None, is_healthy: bool) -> None:
    assert (judge_heartbeat(age, 15) is None) is is_healthy


def test_log_lines_keep_their_generation_and_swap(layout: Layout) -> None:
    tell(layout, "hello", level="WARNING", generation=3, swap_id="s")
    row = store.read_rows(layout, "logs")[0]
    assert (row["msg"], row["level"], row["generation"], row["swapId"]) == ("hello", "WARNING", 3, "s")
