"""Everybody who takes part in swaps, each step as the real actor takes it, on a history in memory.

The watchers see every commit and know the promises on their own: they ask the history, never the functions under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from switchyard.errors import InputError
from switchyard.policies import Policy, Rules, Target
from switchyard.swap import flip, flip_rules, retirement_rules, transitions
from switchyard.swap.control_message import parse_message
from switchyard.swap.decision import Decision, DecisionKind, decide
from switchyard.swap.history import (
    BACKFILL_PREFIX,
    FINISHED,
    PUBLISH_PREFIX,
    ROLLBACK_PREFIX,
    SETTLING,
    UNDO_PREFIX,
    Entry,
    Event,
    Ledger,
    StatusRow,
    first_swap_id,
)
from switchyard.swap.transitions import OpenCommand
from tests.properties.memory_history import Crash, EarlyReader, MemoryHistory, Point, RowChange

T = TypeVar("T")
RULES = Rules()
KEEPING = Rules(is_keeping=True, keep=timedelta(seconds=60), stuck=timedelta(seconds=10))
FOR_GOOD = replace(KEEPING, keep=None)
TOPICS = {"users": 1, "users-2": 1, "accounts": 1, "control": 1}
POLICY = Policy(Target("users", "accounts", "left"))
Fields = Mapping[str, object]
INNER, LEFT, NATURAL = ({"joinType": name} for name in ("inner", "left", "natural"))
RESUME_LEFT, RESUME_INNER = ({**fields, "start": "resume"} for fields in (LEFT, INNER))
MESSAGES: list[Fields] = [
    INNER,
    LEFT,
    {"usersTopic": "users-2"},
    {"usersTopic": "users"},
    RESUME_INNER,
    RESUME_LEFT,
    {"usersTopic": "users", **NATURAL},
    {"usersTopic": "users", **LEFT},
    NATURAL,
    {},
    {"usersTopic": "users-2", **INNER, "deadlineSeconds": 30},
    {"usersTopic": "users-2", **NATURAL, "deadlineSeconds": 500},
    {"start": "earliest"},
]
WITHOUT_EFFECT: list[tuple[Fields, Event]] = [
    ({"usersTopic": "users-2", "joinType": "asof", "dryRun": True}, Event.PLANNED),
    *(({"usersTopic": name}, Event.REJECTED) for name in ("missing", "control", "accounts", "a/b")),
]
SECONDS = (1, 6, 6, 9, 16, 31, 121)


Pause = tuple[Point, int]
"""The how-manieth read or commit of a step."""


@dataclass
class Driver:
    generation: int
    swap_id: str
    watched_since: datetime


@dataclass(frozen=True)
class Plan:
    """Which other actors interrupt an actor at which of its pauses, and where it crashes, if it does."""

    interruptions: tuple[tuple[Pause, str, int], ...] = ()
    crash: Pause | None = None


@dataclass
class World:
    rules: Rules = RULES
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    drivers: dict[int, Driver] = field(default_factory=dict)
    seen: dict[int, datetime] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    sent: list[tuple[str, Fields]] = field(default_factory=list)
    rollbacks: list[str] = field(default_factory=list)
    backfills: list[str] = field(default_factory=list)
    publications: list[str] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    """Backfills whose job has written all rows, and those whose job could not."""
    row_since: int = 0
    """How many entries there were when the row was last changed."""
    flipped: list[str] = field(default_factory=list)
    """The ids of all requests that have flipped, in order."""
    by_hand: int | None = None
    """The generation that a person is retiring."""

    def __post_init__(self) -> None:
        self.history = MemoryHistory(lambda: self.now, self.pause, self.watch_entries, self.watch_row)
        self._others: dict[Pause, list[Callable[[], object]]] = {}
        self._pauses: dict[Point, int] = {}

    # Interruptions: one actor at work, others in between

    def run(self, name: str, number: int = 0, plan: Plan | None = None) -> None:
        """One step of an actor. A driver that crashes in it is dead; all others are stateless and come again."""
        plan = plan or Plan()
        others: dict[Pause, list[Callable[[], object]]] = {}
        for pause, other, its_number in plan.interruptions:
            others.setdefault(pause, []).append(partial(getattr(self, other), its_number))
        if plan.crash:
            others.setdefault(plan.crash, []).append(crash)
        drivers = sorted(self.drivers)
        try:
            self.interleave(partial(getattr(self, name), number), others)
        except Crash:
            if name in OF_DRIVERS and drivers:
                self.drivers.pop(pick(drivers, number), None)

    def interleave(self, step: Callable[[], T], others: dict[Pause, list[Callable[[], object]]]) -> T:
        self._others, self._pauses = others, {}
        try:
            return step()
        finally:
            self._others = {}

    def pause(self, point: Point) -> None:
        if not self._others:
            return
        self._pauses[point] = nth = self._pauses.get(point, 0) + 1
        interruptions = self._others.pop((point, nth), [])
        # An interruption is not interrupted.
        others, self._others = self._others, {}
        for interrupt in interruptions:
            interrupt()
        self._others = others

    # Requesters

    def ask(self, number: int) -> str:
        return self.send(MESSAGES[number % len(MESSAGES)])

    def send(self, fields: Fields) -> str:
        swap_id = f"m-{len(self.sent) + 1}"
        self.sent.append((swap_id, fields))
        self.handle(swap_id, fields)
        return swap_id

    def take_again(self, number: int = 0) -> None:
        """Another taker has the newest message too."""
        if self.sent:
            self.handle(*self.sent[-1])

    def handle(self, swap_id: str, fields: Fields) -> None:
        message = parse_message(json.dumps(fields).encode())

        def decide_message(command: OpenCommand) -> Entry:
            ledger, status_row = command.ledger, command.status_row
            decision = decide(
                message,
                desired=flip_rules.desired(ledger, status_row),
                active=status_row.target,
                policy=POLICY,
                topics=TOPICS,
                is_snapshot=flip_rules.desires_snapshot(ledger, status_row),
            )
            if decision.is_dry:
                return command.settle(Event.PLANNED)
            if decision.kind is DecisionKind.REFRESH:
                return command.settle(Event.REFRESHED)
            generation = generation_for(decision, ledger, status_row)
            given = message.deadlineSeconds
            within = None if given is None else timedelta(seconds=given)
            return self.ask_for(command, generation, decision.target, decision.start, within)

        entry = self.take(swap_id, decide_message)
        if entry is not None and entry.event is Event.REFRESHED:
            flip.refresh(self.history, self.now)

    def rollback(self, number: int = 0) -> str:
        swap_id = f"{ROLLBACK_PREFIX}{len(self.rollbacks) + 1}"
        self.rollbacks.append(swap_id)
        self.roll_back(swap_id)
        return swap_id

    def roll_back(self, swap_id: str) -> None:
        def decide(command: OpenCommand) -> Entry:
            ledger, status_row = command.ledger, command.status_row
            generation = flip_rules.previous_generation(ledger, status_row)
            if generation is None:
                raise InputError("there is no previous generation")
            return self.ask_for(command, generation, ledger.requests_of(generation)[0].target, "resume")

        self.take(swap_id, decide)

    def backfill(self, number: int = 0) -> str:
        """Asks for a snapshot of history; whatever else is under way goes on."""
        swap_id = f"{BACKFILL_PREFIX}{len(self.backfills) + 1}"
        self.backfills.append(swap_id)
        self.order(swap_id)
        return swap_id

    def order(self, swap_id: str) -> None:
        self.take(swap_id, lambda command: command.ask_for_snapshot(POLICY.defaults, "earliest"))

    def publish(self, number: int = 0) -> None:
        """Asks for one of the snapshots, finished or not."""
        snapshots = sorted(snapshots_in(self.history.ledger().entries))
        if snapshots:
            swap_id = f"{PUBLISH_PREFIX}{len(self.publications) + 1}"
            self.publications.append(swap_id)
            self.publish_one(swap_id, pick(snapshots, number))

    def publish_one(self, swap_id: str, snapshot: int) -> None:
        def decide(command: OpenCommand) -> Entry:
            if not command.ledger.is_finished(snapshot):
                raise InputError("it is not finished")
            return self.ask_for(command, snapshot, POLICY.defaults, "resume")

        self.take(swap_id, decide)

    def ask_for(
        self, command: OpenCommand, generation: int, target: Target, start: str, within: timedelta | None = None
    ) -> Entry:
        deadline = self.now + (within or self.rules.ready_deadline)
        return command.ask_for(generation, target, start, deadline=deadline)

    def take(self, swap_id: str, decide: Callable[[OpenCommand], Entry]) -> Entry | None:
        taken = transitions.take_command(self.history, swap_id, "test", lambda command: (decide(command), None))
        return taken[0] if taken else None

    # Drivers and who starts them

    def start(self, number: int = 0) -> None:
        """The control DAG triggers the run, and its task starts the driver; a newer one fences the older one out."""
        wanted = flip_rules.needs_run(self.history.ledger())
        assert wanted is None or wanted.generation not in snapshots_in(self.history.kept.entries)
        if wanted is not None and transitions.note(self.history, wanted.entry(Event.STARTING)):
            self.drivers[wanted.generation] = Driver(wanted.generation, wanted.swapId, self.now)

    def restart(self, number: int = 0) -> None:
        """Airflow tries a task again whose driver is dead."""
        ledger, status_row = self.history.ledger(), self.history.status_row()
        wanted = [entry.generation for entry in ledger.lingering if entry.generation is not None]
        if status_row.generation is not None:
            wanted.append(status_row.generation)
        if ledger.pending and ledger.has(ledger.pending.swapId, Event.STARTING):
            wanted.append(ledger.pending.generation)
        snapshots = snapshots_in(ledger.entries)
        dead = [generation for generation in wanted if generation not in self.drivers and generation not in snapshots]
        if dead:
            generation = pick(dead, number)
            request = ledger.request_of(generation)
            assert request is not None
            self.drivers[generation] = Driver(generation, request.swapId, self.now)

    def work(self, number: int) -> None:
        """All are seen at work, or all but one."""
        self.seen |= {generation: self.now for generation in self.drivers if generation != self.hanging(number)}

    def hanging(self, number: int) -> int | None:
        return sorted(self.drivers)[number] if 0 <= number < len(self.drivers) else None

    def ready(self, number: int) -> None:
        for driver in self.one_driver(number):
            ledger = self.history.ledger()
            wanted = ledger.request_of(driver.generation)
            if wanted is not None and ledger.is_open(wanted) and not must_stop(ledger, driver):
                transitions.note(self.history, wanted.entry(Event.READY))

    def flip(self, number: int) -> bool:
        """Usually of the newest request; of any, because nobody may rely on who asks."""
        requests = self.history.ledger().requests
        older = number // 8
        return bool(requests) and flip.try_flip(self.history, pick(requests, -1 - older).swapId, self.now, self.rules)

    def late_flip(self, number: int) -> None:
        """By one who read the row and then the history, and comes to commit now: the row is still the same."""
        entries = self.history.kept.entries
        read = entries[: max(self.row_since, len(entries) - number // 3)]
        if requested(read):
            early = EarlyReader(self.history, Ledger(read))
            flip.try_flip(early, requested(read)[-1].swapId, read[-1].at, self.rules)

    def advance(self, number: int = 0) -> None:
        """The next step towards the flip, by the actor that has to take it."""
        ledger = self.history.kept
        wanted = ledger.pending
        if wanted is None or flip_rules.number_to_withdraw(ledger, self.history.row, self.now):
            self.settle()
        elif flip_rules.needs_run(ledger):
            self.start()
        elif wanted.generation in self.drivers and not ledger.has(wanted.swapId, Event.READY):
            self.ready(sorted(self.drivers).index(wanted.generation))
        elif wanted.generation in snapshots_in(ledger.entries) and not ledger.has(wanted.swapId, Event.READY):
            self.flip_snapshot()
        elif not self.flip(0):
            self.settle()

    def look(self, number: int) -> None:
        """What a driver does between batches when it is not the active one."""
        for driver in self.one_driver(number):
            generation = driver.generation
            ledger, status_row = self.history.ledger(), self.history.status_row()
            if must_stop(ledger, driver):
                self.drivers.pop(generation, None)
            elif retirement_rules.should_retire(ledger, status_row, generation, self.now, self.rules, self.seen.get):
                if transitions.try_retire(
                    self.history, generation, "its time is over", self.now, self.rules, self.seen.get
                ):
                    self.drivers.pop(generation, None)
            else:
                since = driver.watched_since
                transitions.undo_flip(self.history, generation, self.now, since, self.rules, self.seen.get)

    def die(self, number: int) -> None:
        if self.drivers:
            del self.drivers[pick(sorted(self.drivers), number)]

    def fail(self, number: int = 0) -> None:
        """The pending one cannot go on: its task gives the request up."""
        wanted = self.history.ledger().pending
        if wanted is not None and wanted.generation != self.history.status_row().generation:
            self.given_up.add(wanted.swapId)
            self.drivers.pop(wanted.generation, None)
            transitions.give_up(self.history, wanted.swapId, "its driver failed", self.now)

    def retire_by_hand(self, number: int) -> None:
        """A person names any generation; what cannot be retired is refused."""
        generations = self.history.ledger().generations
        if generations:
            self.retire_one(pick(generations, number))

    def retire_one(self, generation: int) -> str | None:
        # Another person may do the same in between.
        interrupted, self.by_hand = self.by_hand, generation
        try:
            return transitions.retire_by_hand(self.history, generation, "by hand")
        finally:
            self.by_hand = interrupted

    def run_backfill(self, number: int = 0) -> None:
        """One step of the job of a backfill that is under way: it starts, and then has written all or cannot."""
        ledger = self.history.ledger()
        under_way = [snapshot for snapshot in ledger.snapshots.values() if ledger.is_open(snapshot)]
        if not under_way:
            return
        snapshot = pick(under_way, number)
        if transitions.note(self.history, snapshot.entry(Event.STARTING)):
            return
        ended, event = (self.broken, Event.FAILED) if number % 4 == 3 else (self.finished, Event.PLANNED)
        ended.add(snapshot.swapId)
        transitions.note(self.history, snapshot.entry(event))

    def one_driver(self, number: int) -> Iterator[Driver]:
        if self.drivers:
            yield self.drivers[pick(sorted(self.drivers), number)]

    # Bystanders: any process that comes by

    def settle(self, number: int = 0) -> None:
        transitions.settle_due(self.history, self.now)

    def flip_snapshot(self, number: int = 0) -> None:
        transitions.flip_snapshot(self.history, self.now, self.rules)

    def retire_silent(self, number: int = 0) -> None:
        ledger, status_row = self.history.ledger(), self.history.status_row()
        for generation in retirement_rules.silent_lingerers(ledger, status_row, self.now, self.rules, self.seen.get):
            transitions.try_retire(self.history, generation, "it was not heard of", self.now, self.rules, self.seen.get)

    def close(self, number: int = 0) -> None:
        ledger = self.history.ledger()
        for generation in ledger.generations:
            if retirement_rules.is_abandoned(ledger, generation):
                transitions.close_abandoned(self.history, generation, "removed")

    def tick(self, number: int) -> None:
        self.now += timedelta(seconds=SECONDS[number % len(SECONDS)])

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # What every commit must keep

    def watch_entries(self, before: Ledger, written: list[Entry]) -> None:
        entries = list(before.entries)
        for entry in written:
            assert not entries or entry.at > entries[-1].at
            if entry.event in SETTLING:
                assert not [e for e in entries if e.swapId == entry.swapId and e.event in SETTLING]
            check = getattr(self, f"check_{entry.event.lower()}", None)
            if check is not None:
                check(entries, entry)
            entries.append(entry)
        lives = {generation: life_of(entries, generation) for generation in {e.generation for e in entries}}
        assert len([life for life in lives.values() if life and life.event is Event.APPLIED]) <= 1, lives

    def check_requested(self, entries: list[Entry], entry: Entry) -> None:
        assert entry.swapId not in {e.swapId for e in entries}
        assert entry.generation is not None
        known = {e.generation for e in entries if e.event is Event.REQUESTED}
        was_active = {e.generation for e in entries if e.event is Event.APPLIED} | {self.history.row.generation}
        if is_backfill(entry):
            assert entry.generation == len(known) + 1
            assert entry.deadline is None
            return
        assert entry.generation in was_active | finished_in(entries) or entry.generation == len(known) + 1
        if entry.swapId.startswith(UNDO_PREFIX):
            assert self.history.row.generation not in snapshots_in(entries)
            assert first_swap_id(entry.swapId) == UNDO_PREFIX + self.flipped[-1]
            assert not open_ids(entries)
            self.check_undone(entries, entry)

    def check_undone(self, entries: list[Entry], entry: Entry) -> None:
        """A kept generation does not undo a flip to one that has worked for longer than others linger."""
        life, alive_at = life_of(entries, entry.generation), self.seen.get(self.history.row.generation or 0)
        assert life is not None
        assert not self.rules.is_keeping or alive_at is None or alive_at < life.at + self.rules.linger

    def check_applied(self, entries: list[Entry], entry: Entry) -> None:
        """One for every flip, in the order of the flips."""
        assert [e.swapId for e in entries if e.event is Event.APPLIED] == self.flipped[:-1]
        assert entry.swapId == self.flipped[-1]
        assert entry.generation == self.history.row.generation

    def check_superseded(self, entries: list[Entry], entry: Entry) -> None:
        assert entry.swapId not in self.flipped
        assert requested(entries)[-1].swapId != entry.swapId

    def check_failed(self, entries: list[Entry], entry: Entry) -> None:
        """Only because of its deadline or its driver."""
        assert entry.swapId not in self.flipped
        (own,) = [e for e in entries if e.swapId == entry.swapId and e.event is Event.REQUESTED]
        assert entry.generation != self.history.row.generation
        if is_backfill(entry):
            assert entry.swapId in self.broken
            return
        assert entry.swapId in self.given_up or (own.deadline is not None and self.now > own.deadline)

    def check_starting(self, entries: list[Entry], entry: Entry) -> None:
        """No driver streams into a snapshot: only the job that writes it starts."""
        assert is_backfill(entry) or entry.generation not in snapshots_in(entries)

    def check_planned(self, entries: list[Entry], entry: Entry) -> None:
        assert not is_backfill(entry) or entry.swapId in self.finished

    def check_refreshed(self, entries: list[Entry], entry: Entry) -> None:
        if entry.generation is not None:
            assert entry.generation == self.history.row.generation
            assert entry.swapId not in self.flipped

    def check_lingering(self, entries: list[Entry], entry: Entry) -> None:
        life = life_of(entries, entry.generation)
        assert life is not None
        assert (life.event, life.swapId) == (Event.APPLIED, entry.swapId)
        assert self.history.row.generation != entry.generation

    def check_retired(self, entries: list[Entry], entry: Entry) -> None:
        """Replaced and not wanted, and its time is over or a person ends it; or it ended before its flip."""
        assert self.history.row.generation != entry.generation
        asked = [e for e in commands(entries) if e.generation == entry.generation]
        assert asked[-1].swapId in {e.swapId for e in entries if e.event in SETTLING}
        life = life_of(entries, entry.generation)
        if life is None or life.event is Event.RETIRED:
            assert asked[-1].swapId not in self.flipped
            assert life is None or asked[-1].at > life.at
            return
        assert life.event is Event.LINGERING
        assert entry.generation == self.by_hand or self.is_time_over(entries, life)

    def is_time_over(self, entries: list[Entry], life: Entry) -> bool:
        """What is kept has a longer time and is not counted, but ends when its driver is silent for very long."""
        newer = [e for e in entries if e.event is Event.LINGERING and e.at > life.at]
        still = [e for e in newer if life_of(entries, e.generation) is e]
        if not self.rules.is_keeping or life.generation in snapshots_in(entries):
            return self.now >= life.at + self.rules.linger or len(still) >= self.rules.max_lingering
        heard_at = max(life.at, self.seen.get(life.generation or 0, life.at))
        if self.now >= heard_at + self.rules.stuck + self.rules.ready_deadline:
            return True
        return self.rules.keep is not None and self.now >= life.at + self.rules.keep

    def watch_row(self, change: RowChange) -> None:
        before, after = change.before, change.after
        self.row_since = len(self.history.kept.entries)
        if after.flipped != before.flipped:
            assert change.read is not None
            self.check_flip(before, after, list(change.read.entries))
        elif after.barred != before.barred:
            assert after == replace(before, barred=after.barred)
            self.check_bar(before, after)
        else:
            assert after == replace(before, lastApplied=after.lastApplied)

    def check_flip(self, before: StatusRow, after: StatusRow, read: list[Entry]) -> None:
        """`read` is the history that the flip was decided on: a request written after it comes after the flip."""
        wanted = requested(read)[-1]
        assert after.flipped == len(requested(read)) > before.barred
        assert (after.generation, after.target) == (wanted.generation, wanted.target)
        assert after.generation != before.generation
        assert (after.epoch, after.barred) == (before.epoch + 1, before.barred)
        assert open_ids(read) == [wanted.swapId]
        assert [e for e in read if e.swapId == wanted.swapId and e.event is Event.READY]
        now = after.lastApplied
        assert now is not None
        assert wanted.deadline is None or now <= wanted.deadline
        flips = [e for e in read if e.event is Event.APPLIED]
        if flips and not wanted.swapId.startswith((ROLLBACK_PREFIX, UNDO_PREFIX)):
            assert now >= flips[-1].at + self.rules.dwell
        assert wanted.swapId not in self.history.kept.outcomes
        assert wanted.swapId not in self.flipped
        self.check_reopened(read, wanted)
        self.flipped.append(wanted.swapId)

    def check_reopened(self, read: list[Entry], wanted: Entry) -> None:
        """A generation that had retired was asked for again and has a new driver; a snapshot is finished."""
        if wanted.generation in snapshots_in(read):
            assert wanted.generation in finished_in(read)
            return
        ends = [e for e in read if e.event is Event.RETIRED and e.generation == wanted.generation]
        if ends:
            starts = [e for e in read if e.event is Event.STARTING and e.generation == wanted.generation]
            assert wanted.at > ends[-1].at
            assert [e for e in starts if e.at > ends[-1].at]

    def check_bar(self, before: StatusRow, after: StatusRow) -> None:
        assert after.barred > before.barred
        entries = requested(self.history.kept.entries)
        for number in range(before.barred + 1, after.barred + 1):
            own = entries[number - 1]
            is_late = own.deadline is not None and self.now > own.deadline
            has_lost = number < len(entries) or is_late or own.swapId in self.given_up
            assert has_lost or own.swapId in self.flipped
        assert after.barred != before.flipped

    def check_always(self) -> None:
        ledger, row = self.history.kept, self.history.row
        assert row.epoch == len(self.flipped)
        if row.flipped:
            active = ledger.requests[row.flipped - 1]
            assert (active.swapId, active.generation) == (self.flipped[-1], row.generation)
        may = [r for r in ledger.requests if flip_rules.may_flip(ledger, row, r.swapId, self.now, self.rules)]
        assert may in ([], [ledger.newest])
        for entry in ledger.outcomes.values():
            is_applied = entry.event is Event.APPLIED
            assert is_applied == (entry.swapId in self.flipped), entry

    # Rest

    def come_to_rest(self) -> None:
        """Everybody is healthy and comes by again and again, and time passes. What is kept for good, a person ends."""
        for _ in range(60):
            self.go_round()
            ledger, row = self.history.kept, self.history.row
            is_settled = not ledger.open_requests and not any(map(ledger.is_open, ledger.snapshots.values()))
            if is_settled and not ledger.lingering and set(self.drivers) <= {row.generation}:
                return
            if self.rules.keep is None:
                for generation in ledger.generations:
                    self.retire_one(generation)
            self.wait(5)
        raise AssertionError(f"no rest: open {ledger.open_requests}, lingering {ledger.lingering}, {self.drivers}")

    def go_round(self) -> None:
        self.settle()
        self.start()
        self.restart()
        self.work(-1)
        for number in range(len(self.drivers)):
            self.ready(number)
        self.run_backfill()
        self.flip_snapshot()
        self.flip(0)
        self.settle()
        for number in reversed(range(len(self.drivers))):
            self.look(number)
        self.retire_silent()
        self.close()

    def check_rest(self) -> None:
        """Every request is settled once, nothing is left over, and the active one is the last that flipped."""
        self.check_always()
        ledger, row = self.history.kept, self.history.row
        for request in (*ledger.requests, *ledger.snapshots.values()):
            assert len([e for e in ledger.entries if e.swapId == request.swapId and e.event in SETTLING]) == 1
        for swap_id in [*(sent for sent, _ in self.sent), *self.rollbacks, *self.backfills, *self.publications]:
            assert swap_id in ledger.outcomes or not ledger.is_known(swap_id)
        for generation in ledger.generations:
            life = life_of(ledger.entries, generation)
            assert life is not None
            assert life.event is (Event.APPLIED if generation == row.generation else Event.RETIRED)
            assert ledger.is_retired(generation) is (generation != row.generation)
        assert [e.swapId for e in ledger.flips] == self.flipped


OF_DRIVERS = ("ready", "look")


def crash() -> None:
    raise Crash


def must_stop(ledger: Ledger, driver: Driver) -> bool:
    """Its generation ended; also when it was asked for again since, because that is for another driver."""
    if ledger.is_retired(driver.generation) or retirement_rules.is_abandoned(ledger, driver.generation):
        return True
    own = ledger.find(driver.swap_id)
    ends = [e for e in ledger.entries if e.event is Event.RETIRED and e.generation == driver.generation]
    return own is not None and any(end.at > own.at for end in ends)


def generation_for(decision: Decision, ledger: Ledger, status_row: StatusRow) -> int:
    if decision.kind is DecisionKind.TAKE_BACK:
        assert status_row.generation is not None
        return status_row.generation
    if decision.start != "resume":
        return ledger.next_generation
    found = flip_rules.find_resumable(ledger, status_row, decision.target)
    if found is None:
        raise InputError("there is nothing to resume")
    return found


def pick(choices: Sequence[T], number: int) -> T:
    return choices[number % len(choices)]


def commands(entries: list[Entry] | tuple[Entry, ...]) -> list[Entry]:
    return [entry for entry in entries if entry.event is Event.REQUESTED]


def is_backfill(entry: Entry) -> bool:
    return entry.swapId.startswith(BACKFILL_PREFIX)


def requested(entries: list[Entry] | tuple[Entry, ...]) -> list[Entry]:
    """Those that ask to become active."""
    return [entry for entry in commands(entries) if not is_backfill(entry)]


def snapshots_in(entries: list[Entry] | tuple[Entry, ...]) -> set[int | None]:
    return {entry.generation for entry in commands(entries) if is_backfill(entry)}


def finished_in(entries: list[Entry]) -> set[int | None]:
    return {entry.generation for entry in entries if is_backfill(entry) and entry.event is FINISHED}


def open_ids(entries: list[Entry]) -> list[str]:
    settled = {entry.swapId for entry in entries if entry.event in SETTLING}
    return [entry.swapId for entry in requested(entries) if entry.swapId not in settled]


def life_of(entries: list[Entry] | tuple[Entry, ...], generation: int | None) -> Entry | None:
    lives = (Event.APPLIED, Event.LINGERING, Event.RETIRED)
    found = [entry for entry in entries if entry.generation == generation and entry.event in lives]
    return found[-1] if found else None


class unchanged:
    """Nothing is written in the block, neither an entry nor the row."""

    def __init__(self, world: World) -> None:
        self.history = world.history

    def __enter__(self) -> None:
        self.before = (self.history.kept, self.history.row)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            assert self.history.kept is self.before[0]
            assert self.history.row is self.before[1]
