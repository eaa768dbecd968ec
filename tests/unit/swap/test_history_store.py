"""The history in real Delta tables: numbers, markers and times, also when processes race."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from switchyard.layout import Layout
from switchyard.policies import Rules, Target
from switchyard.swap import flip, flip_rules, transitions
from switchyard.swap.history import Entry, Event, Ledger, StatusRow, next_swap_id
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.status import read_status
from switchyard.wording import mask_emails
from tests import histories
from tests.histories import set_row, write

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULES = Rules()
LEFT, INNER = Target("users", "accounts", "left"), Target("users", "accounts", "inner")


ask = partial(histories.ask, now=NOW)
make_ready = partial(histories.make_ready, now=NOW)
apply = partial(histories.activate, now=NOW, rules=RULES)


def race(layout: Layout, work: Callable[..., None], *arguments: tuple[Any, ...]) -> list[Any]:
    """Runs each in a separate process, all at once, and returns what they say. Delta-rs does not survive a fork."""
    context = multiprocessing.get_context("spawn")
    barrier, said = context.Barrier(len(arguments)), context.Queue()
    racers = [context.Process(target=work, args=(layout.root, barrier, said, *given)) for given in arguments]
    for racer in racers:
        racer.start()
    answers = [said.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0] * len(racers)
    return answers


def test_an_empty_history(layout: Layout) -> None:
    history = HistoryStore(layout)
    assert history.ledger() == Ledger()
    assert history.status_row() == StatusRow()
    assert read_status(layout) is None


def test_every_field_of_an_entry_comes_back(layout: Layout) -> None:
    full = Entry("s-1", Event.REQUESTED, 7, LEFT, "earliest", "someone", "why", NOW + timedelta(seconds=120))
    bare = Entry("s-2", Event.REJECTED, detail="no such topic \u0000 ü …")
    written = write(HistoryStore(layout, clock=lambda: NOW), full, bare)
    assert [replace(entry, at=datetime.min) for entry in written] == [full, bare]
    assert HistoryStore(layout).ledger().entries == tuple(written)


def test_every_field_of_the_row_and_both_marks_come_back(layout: Layout) -> None:
    history = HistoryStore(layout)
    wanted = StatusRow(3, INNER, NOW, 5, flipped=8, barred=7)
    assert set_row(history, wanted) == wanted
    assert (history.status_row(), HistoryStore(layout).status_row()) == (wanted, wanted)
    assert len(store.read_rows(layout, "status")) == 1
    status = read_status(layout)
    assert status is not None
    assert (status.generation, status.joinType, status.state, status.epoch) == (3, "inner", "ACTIVE", 5)


def test_a_flip_replaces_the_row_and_counts_the_epoch(layout: Layout) -> None:
    history = HistoryStore(layout)
    apply(history, "s-1")
    later = datetime.now(UTC) + timedelta(seconds=60)
    apply(history, "s-2", INNER, now=later)
    assert history.status_row() == StatusRow(2, INNER, later, 2, flipped=2)
    assert len(store.read_rows(layout, "status")) == 1
    events = [(entry.swapId, entry.event) for entry in history.ledger().entries]
    assert events[-2:] == [("s-2", Event.APPLIED), ("s-1", Event.LINGERING)]


def test_a_mark_alone_keeps_the_row_and_its_file(layout: Layout) -> None:
    history = HistoryStore(layout)
    apply(history, "s-1")
    before, files = history.status_row(), DeltaTable(layout.table("status")).file_uris()
    assert flip.withdraw(history, 9)
    assert history.status_row() == replace(before, barred=9)
    assert DeltaTable(layout.table("status")).file_uris() == files
    assert len(store.read_rows(layout, "status")) == 1


def test_a_mark_comes_before_any_row(layout: Layout) -> None:
    history = HistoryStore(layout)
    ask(history, "s-1")
    flip.withdraw(history, 1)
    assert history.status_row() == StatusRow(barred=1)
    assert read_status(layout) is None


def test_no_decision_is_no_commit(layout: Layout) -> None:
    history = HistoryStore(layout)
    flip.refresh(history, NOW)
    assert transitions.settle_due(history, NOW) == []
    assert not flip.try_flip(history, "s-1", NOW, RULES)
    assert [DeltaTable(layout.table(name)).version() for name in ("status", "swap_history")] == [0, 0]


def test_a_decision_that_raises_writes_nothing(layout: Layout) -> None:
    def refuse(command: transitions.OpenCommand) -> tuple[Entry, None]:
        raise ValueError("no")

    history = HistoryStore(layout)
    with pytest.raises(ValueError, match="no"):
        transitions.take_command(history, "s-1", "test", refuse)
    assert history.ledger() == Ledger()


def test_the_marks_outlive_a_checkpoint_of_the_log(layout: Layout) -> None:
    history = HistoryStore(layout)
    apply(history, "s-1")
    flip.withdraw(history, 4)
    table = DeltaTable(layout.table("status"))
    table.create_checkpoint()
    assert HistoryStore(layout).status_row() == history.status_row()
    refreshed = set_row(history, replace(history.status_row(), lastApplied=NOW + timedelta(seconds=1)))
    assert HistoryStore(layout).status_row() == refreshed
    assert (history.status_row().flipped, history.status_row().barred) == (1, 4)


def test_a_decision_is_asked_again_when_another_one_was_faster(layout: Layout) -> None:
    history, other = HistoryStore(layout), HistoryStore(layout)
    asked: list[int] = []

    def decide(command: transitions.OpenCommand) -> tuple[Entry, None]:
        asked.append(len(command.ledger.entries))
        if len(asked) == 1:
            write(other, Entry("other", Event.REJECTED))
        return command.settle(Event.REJECTED), None

    transitions.take_command(history, "mine", "test", decide)
    assert asked == [0, 1]
    assert [entry.swapId for entry in history.ledger().entries] == ["other", "mine"]


def test_a_change_of_the_row_is_asked_again_after_a_mark(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker touches no file: the flip must notice it all the same."""
    history, other = HistoryStore(layout), HistoryStore(layout)
    make_ready(history, "s-1")
    asked: list[int] = []
    may_flip = flip_rules.may_flip

    def interrupt(ledger: Ledger, status_row: StatusRow, *rest: Any) -> bool:
        asked.append(status_row.barred)
        is_allowed = may_flip(ledger, status_row, *rest)
        if len(asked) == 1:
            assert is_allowed
            flip.withdraw(other, 1)
        return is_allowed

    monkeypatch.setattr(flip_rules, "may_flip", interrupt)
    assert not flip.try_flip(history, "s-1", NOW, RULES)
    assert asked == [0, 1]
    assert history.status_row() == StatusRow(barred=1)


def test_times_increase_also_when_a_clock_goes_backwards(layout: Layout) -> None:
    early, late = HistoryStore(layout, clock=lambda: NOW), HistoryStore(layout, clock=lambda: NOW + timedelta(hours=1))
    for number, history in enumerate((early, late, early, early, late)):
        pair = [Entry(f"s-{number}-{part}", Event.REJECTED) for part in ("a", "b")]
        assert write(history, *pair) == list(history.ledger().entries[-2:])
    entries = HistoryStore(layout).ledger().entries
    assert [entry.swapId for entry in entries] == [f"s-{number}-{part}" for number in range(5) for part in ("a", "b")]
    assert all(earlier.at < later.at for earlier, later in pairwise(entries))
    assert entries[0].at == NOW
    assert entries[4].at == NOW + timedelta(hours=1, microseconds=2)


def test_a_store_sees_what_others_write_and_reads_each_file_once(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = HistoryStore(layout), HistoryStore(layout)
    read: list[str] = []
    read_file = store.read_file

    def count(folder: Any, path: str, name: str) -> list[store.Row]:
        read.append(path)
        return read_file(folder, path, name)

    write(writer, Entry("s-1", Event.REJECTED))
    monkeypatch.setattr(store, "read_file", count)
    for number in (2, 3, 4):
        assert len(reader.ledger().entries) == number - 1
        assert reader.ledger() is reader.ledger()
        write(writer, Entry(f"s-{number}", Event.REJECTED))
    assert [entry.swapId for entry in reader.ledger().entries] == ["s-1", "s-2", "s-3", "s-4"]
    # Each of the two stores once for each of the four files.
    assert max(read.count(path) for path in read) <= 2
    assert len(set(read)) == 4


def test_the_order_outlives_the_compaction_of_the_history(layout: Layout) -> None:
    history, reader = HistoryStore(layout), HistoryStore(layout)
    for number in range(4):
        ask(history, f"s-{number}")
    before = reader.ledger()
    DeltaTable(layout.table("swap_history")).optimize.compact()
    assert reader.ledger() == HistoryStore(layout).ledger() == before
    assert ask(history, "s-4").number == 5


def test_numbers_are_given_once_and_kept(layout: Layout) -> None:
    history = HistoryStore(layout)
    asked = [ask(history, swap_id) for swap_id in ("s-1", "s-2", "s-1", "s-3")]
    assert [(request.number, request.generation) for request in asked] == [(1, 1), (2, 2), (1, 1), (3, 3)]


def test_an_id_that_was_refused_is_no_request(layout: Layout) -> None:
    history = HistoryStore(layout)
    transitions.note(history, Entry("s-1", Event.REJECTED))
    with pytest.raises(ValueError, match="s-1 is known, but not as a request"):
        ask(history, "s-1")
    assert next_swap_id(history.ledger(), "s-1") == "s-1~2"
    assert ask(history, "s-1~2").number == 1


def test_a_swap_has_one_outcome(layout: Layout) -> None:
    history = HistoryStore(layout)
    request = ask(history, "s-1")
    assert transitions.note(history, request.entry(Event.FAILED))
    assert not transitions.note(history, request.entry(Event.APPLIED))
    assert history.ledger().outcomes["s-1"].event is Event.FAILED


def ask_often(root: str, barrier: Any, said: Any, prefix: str, count: int) -> None:
    history = HistoryStore(Layout(root))
    barrier.wait()
    asked = [ask(history, f"{prefix}{number}") for number in range(count)]
    said.put([(request.number, request.generation) for request in asked])


def test_requests_of_racing_processes_have_consecutive_numbers(layout: Layout) -> None:
    HistoryStore(layout)
    answers = race(layout, ask_often, ("a-", 6), ("b-", 6))
    numbers = sorted(number for answer in answers for number in answer)
    assert numbers == [(number, number) for number in range(1, 13)]
    assert all(answer == sorted(answer) for answer in answers)
    entries = HistoryStore(layout).ledger().entries
    assert len(entries) == 12
    assert all(earlier.at < later.at for earlier, later in pairwise(entries))


def test_the_same_request_of_racing_processes_is_accepted_once(layout: Layout) -> None:
    answers = race(layout, ask_often, ("same-", 4), ("same-", 4))
    assert answers == [[(number, number) for number in range(1, 5)]] * 2
    assert len(HistoryStore(layout).ledger().entries) == 4


def flip_or_withdraw(root: str, barrier: Any, said: Any, is_flip: bool, rounds: int) -> None:
    """Many rounds in one process: starting it takes far longer than a race."""
    history, won = HistoryStore(Layout(root)), []
    for number in range(1, rounds + 1):
        # Far apart, so that no flip has to wait for the one before.
        now = datetime.now(UTC) + timedelta(hours=number)
        if is_flip:
            make_ready(history, f"s-{number}", now=now)
        barrier.wait(60)
        if is_flip:
            won.append(flip.try_flip(history, f"s-{number}", now, RULES))
        else:
            won.append(flip.withdraw(history, number))
        barrier.wait(60)
        if is_flip:
            transitions.settle_due(history, now)
    said.put((is_flip, won))


def test_of_a_flip_and_its_withdrawal_exactly_one_happens(layout: Layout) -> None:
    HistoryStore(layout)
    answers = dict(race(layout, flip_or_withdraw, (True, 8), (False, 8)))
    assert [not flipped for flipped in answers[True]] == answers[False]
    history = HistoryStore(layout)
    outcomes = [history.ledger().outcomes[f"s-{number}"].event for number in range(1, 9)]
    assert outcomes == [Event.APPLIED if flipped else Event.FAILED for flipped in answers[True]]
    assert history.status_row().epoch == answers[True].count(True)


def test_the_writer_of_an_outcome_knows_why_the_swap_was_given_up(layout: Layout) -> None:
    """The one that gave it up is interrupted between the withdrawal and the outcome."""
    history = HistoryStore(layout)
    make_ready(history, "first")
    assert flip.try_flip(history, "first", NOW, RULES)
    transitions.settle_due(history, NOW)
    broken = ask(history, "second", INNER)
    flip.withdraw(history, broken.number, "it broke for ann@example.org")
    flip.refresh(history, NOW)
    transitions.settle_due(HistoryStore(layout), NOW)
    outcome = history.ledger().outcomes["second"]
    assert (outcome.event, outcome.detail) == (Event.FAILED, mask_emails("it broke for ann@example.org"))
    late = ask(history, "third", INNER)
    transitions.settle_due(HistoryStore(layout), NOW + timedelta(seconds=121))
    assert history.ledger().outcomes["third"].detail.startswith("not ready by its deadline")
    assert history.status_row().barred == late.number
    assert history.status_row().barred_because == ""


def test_a_history_of_an_earlier_version_gets_the_new_columns(layout: Layout) -> None:
    old = pa.schema([field for field in SCHEMAS["swap_history"] if field.name != "deadline"])
    row = dict.fromkeys(old.names) | {
        **{"swapId": "old", "generation": 1, "event": "REQUESTED", "requestedBy": "test"},
        **{"usersTopic": "users", "accountsTopic": "accounts", "joinType": "left", "start": "latest"},
        **{"at": datetime(2026, 1, 1, tzinfo=UTC), "detail": ""},
    }
    write_deltalake(layout.table("swap_history"), pa.Table.from_pylist([row], schema=old))
    history = HistoryStore(layout)
    assert transitions.note(history, Entry("old", Event.FAILED, 1, detail="given up"))
    again = HistoryStore(layout).ledger()
    assert [(entry.event, entry.deadline) for entry in again.entries] == [(Event.REQUESTED, None), (Event.FAILED, None)]
