"""Whatever is asked, in which order actors run, where they crash and how the clock moves: the protocol keeps its word.

`World` is everybody who takes part, each step as the real actor takes it. Its watchers see every commit and know the
promises on their own: they ask the history, never the functions under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from switchyard import control, protocol, swaps
from switchyard.errors import InputError
from switchyard.swaps import Entry, Event, Ledger, Request, Rules, Standing, Target
from tests.properties.memory_book import Crash, EarlyReader, MemoryBook, Point, RowChange

T = TypeVar("T")
RULES = Rules()
TOPICS = {"users": 1, "users-2": 1, "accounts": 1, "control": 1}
POLICY = control.Policy(Target("users", "accounts", "left"))
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
]
WITHOUT_EFFECT: list[tuple[Fields, Event]] = [
    ({"usersTopic": "users-2", "joinType": "asof", "dryRun": True}, Event.PLANNED),
    *(({"usersTopic": name}, Event.REJECTED) for name in ("missing", "control", "accounts", "a/b")),
]
SECONDS = (1, 6, 6, 9, 16, 31, 121)


Pause = tuple[Point, int]
"""The how-manieth read or commit of a step."""


class Settled(Exception):
    """A message that needs no swap."""

    def __init__(self, event: Event) -> None:
        super().__init__(event)
        self.event = event


@dataclass
class Driver:
    generation: int
    swap_id: str
    watched_since: datetime


@dataclass(frozen=True)
class Plan:
    """Who gets a turn at which of an actor's pauses, and where the actor crashes, if it does."""

    turns: tuple[tuple[Pause, str, int], ...] = ()
    crash: Pause | None = None


@dataclass
class World:
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    drivers: dict[int, Driver] = field(default_factory=dict)
    seen: dict[int, datetime] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    sent: list[tuple[str, Fields]] = field(default_factory=list)
    rollbacks: list[str] = field(default_factory=list)
    row_since: int = 0
    """How many entries there were when the row was last changed."""
    flipped: list[str] = field(default_factory=list)
    """The ids of all requests that have flipped, in order."""

    def __post_init__(self) -> None:
        self.book = MemoryBook(lambda: self.now, self.pause, self.watch_entries, self.watch_row)
        self._others: dict[Pause, list[Callable[[], object]]] = {}
        self._pauses: dict[Point, int] = {}

    # Turns: one actor at work, others in between

    def run(self, name: str, number: int = 0, plan: Plan | None = None) -> None:
        """One step of an actor. A driver that crashes in it is dead; all others are stateless and come again."""
        plan = plan or Plan()
        others: dict[Pause, list[Callable[[], object]]] = {}
        for pause, other, its_number in plan.turns:
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
        turns = self._others.pop((point, nth), [])
        # Nobody interrupts those who interrupt.
        others, self._others = self._others, {}
        for turn in turns:
            turn()
        self._others = others

    # Requesters

    def ask(self, number: int) -> str:
        return self.send(MESSAGES[number % len(MESSAGES)])

    def send(self, fields: Fields) -> str:
        swap_id = f"m-{len(self.sent) + 1}"
        self.sent.append((swap_id, fields))
        self.handle(swap_id, fields)
        return swap_id

    def handle(self, swap_id: str, fields: Fields) -> None:
        message = control.parse_message(json.dumps(fields).encode())

        def choose(ledger: Ledger, standing: Standing) -> tuple[int, Target, str]:
            desired = swaps.desired(ledger, standing)
            decision = control.decide(message, desired=desired, active=standing.target, policy=POLICY, topics=TOPICS)
            if decision.is_dry:
                raise Settled(Event.PLANNED)
            if decision.kind is control.Kind.REFRESH:
                raise Settled(Event.REFRESHED)
            return generation_for(decision, ledger, standing), decision.target, decision.start

        try:
            self.request(swap_id, choose)
        except InputError as error:
            protocol.note(self.book, Entry(swap_id, Event.REJECTED, detail=str(error)))
        except Settled as settled:
            is_written = protocol.note(self.book, Entry(swap_id, settled.event))
            if is_written and settled.event is Event.REFRESHED:
                protocol.refresh(self.book, self.now)
        except protocol.Retry:
            assert swap_id in self.book.history.outcomes

    def rollback(self, number: int = 0) -> str:
        swap_id = f"{swaps.ROLLBACK_PREFIX}{len(self.rollbacks) + 1}"
        self.rollbacks.append(swap_id)
        self.roll_back(swap_id)
        return swap_id

    def roll_back(self, swap_id: str) -> None:
        def choose(ledger: Ledger, standing: Standing) -> tuple[int, Target, str]:
            generation = swaps.previous_generation(ledger, standing)
            if generation is None:
                raise InputError("there is no previous generation")
            return generation, ledger.requests_of(generation)[0].target, "resume"

        try:
            self.request(swap_id, choose)
        except InputError as error:
            protocol.note(self.book, Entry(swap_id, Event.REJECTED, detail=str(error)))
        except protocol.Retry:
            assert swap_id in self.book.history.outcomes

    def request(self, swap_id: str, choose: Callable[[Ledger, Standing], tuple[int, Target, str]]) -> Request:
        return protocol.request(self.book, swap_id, choose=choose, requested_by="test", now=self.now, rules=RULES)

    # Drivers and who starts them

    def start(self, number: int = 0) -> None:
        """The control DAG triggers the run, and its task starts the driver; a newer one fences the older one out."""
        wanted = swaps.needs_run(self.book.ledger())
        if wanted is not None and protocol.note(self.book, wanted.entry(Event.STARTING)):
            self.drivers[wanted.generation] = Driver(wanted.generation, wanted.swapId, self.now)

    def restart(self, number: int = 0) -> None:
        """Airflow tries a task again whose driver is dead."""
        ledger, standing = self.book.ledger(), self.book.standing()
        wanted = [entry.generation for entry in ledger.lingering if entry.generation is not None]
        if standing.generation is not None:
            wanted.append(standing.generation)
        if ledger.building and ledger.has(ledger.building.swapId, Event.STARTING):
            wanted.append(ledger.building.generation)
        dead = [generation for generation in wanted if generation not in self.drivers]
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
            ledger = self.book.ledger()
            wanted = ledger.request_of(driver.generation)
            if wanted is not None and ledger.is_open(wanted) and not must_stop(ledger, driver):
                protocol.note(self.book, wanted.entry(Event.READY))

    def flip(self, number: int) -> bool:
        """Usually of the newest request; of any, because nobody may rely on who asks."""
        requests = self.book.ledger().requests
        older = number // 8
        return bool(requests) and protocol.try_flip(self.book, pick(requests, -1 - older).swapId, self.now, RULES)

    def late_flip(self, number: int) -> None:
        """By one who read the row and then the history, and comes to commit now: the row is still the same."""
        entries = self.book.history.entries
        read = entries[: max(self.row_since, len(entries) - number // 3)]
        if requested(read):
            early = EarlyReader(self.book, Ledger(read))
            protocol.try_flip(early, requested(read)[-1].swapId, read[-1].at, RULES)

    def advance(self, number: int = 0) -> None:
        """The next step towards the flip, whoever has to take it."""
        ledger = self.book.history
        wanted = ledger.building
        if wanted is None or swaps.number_to_bar(ledger, self.book.row, self.now):
            self.settle()
        elif swaps.needs_run(ledger):
            self.start()
        elif wanted.generation in self.drivers and not ledger.has(wanted.swapId, Event.READY):
            self.ready(sorted(self.drivers).index(wanted.generation))
        elif not self.flip(0):
            self.settle()

    def look(self, number: int) -> None:
        """What a driver does between batches when it is not the active one."""
        for driver in self.one_driver(number):
            generation = driver.generation
            ledger, standing = self.book.ledger(), self.book.standing()
            if must_stop(ledger, driver):
                self.drivers.pop(generation, None)
            elif swaps.should_retire(ledger, standing, generation, self.now, RULES, self.seen.get):
                if protocol.try_retire(self.book, generation, "its time is over", self.now, RULES, self.seen.get):
                    self.drivers.pop(generation, None)
            else:
                since = driver.watched_since
                protocol.undo_flip(self.book, generation, self.now, since, RULES, self.seen.get)

    def die(self, number: int) -> None:
        if self.drivers:
            del self.drivers[pick(sorted(self.drivers), number)]

    def fail(self, number: int = 0) -> None:
        """What builds cannot go on: its task gives the request up."""
        wanted = self.book.ledger().building
        if wanted is not None and wanted.generation != self.book.standing().generation:
            self.given_up.add(wanted.swapId)
            self.drivers.pop(wanted.generation, None)
            protocol.give_up(self.book, wanted.swapId, "its driver failed", self.now)

    def one_driver(self, number: int) -> Iterator[Driver]:
        if self.drivers:
            yield self.drivers[pick(sorted(self.drivers), number)]

    # Bystanders: any process that comes by

    def settle(self, number: int = 0) -> None:
        protocol.settle_due(self.book, self.now)

    def retire_silent(self, number: int = 0) -> None:
        ledger, standing = self.book.ledger(), self.book.standing()
        for generation in swaps.silent_lingerers(ledger, standing, self.now, RULES, self.seen.get):
            protocol.try_retire(self.book, generation, "it was not heard of", self.now, RULES, self.seen.get)

    def close(self, number: int = 0) -> None:
        ledger = self.book.ledger()
        for generation in ledger.generations:
            if swaps.is_abandoned(ledger, generation):
                protocol.close_abandoned(self.book, generation, "removed")

    def tick(self, number: int) -> None:
        self.now += timedelta(seconds=SECONDS[number % len(SECONDS)])

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # What every commit must keep

    def watch_entries(self, before: Ledger, written: list[Entry]) -> None:
        entries = list(before.entries)
        for entry in written:
            assert not entries or entry.at > entries[-1].at
            if entry.event in swaps.SETTLING:
                assert not [e for e in entries if e.swapId == entry.swapId and e.event in swaps.SETTLING]
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
        was_active = {e.generation for e in entries if e.event is Event.APPLIED} | {self.book.row.generation}
        assert entry.generation in was_active or entry.generation == len(known) + 1
        if entry.swapId.startswith(swaps.UNDO_PREFIX):
            assert swaps.first_swap_id(entry.swapId) == swaps.UNDO_PREFIX + self.flipped[-1]
            assert not open_ids(entries)

    def check_applied(self, entries: list[Entry], entry: Entry) -> None:
        """One for every flip, in the order of the flips."""
        assert [e.swapId for e in entries if e.event is Event.APPLIED] == self.flipped[:-1]
        assert entry.swapId == self.flipped[-1]
        assert entry.generation == self.book.row.generation

    def check_superseded(self, entries: list[Entry], entry: Entry) -> None:
        assert entry.swapId not in self.flipped
        assert requested(entries)[-1].swapId != entry.swapId

    def check_failed(self, entries: list[Entry], entry: Entry) -> None:
        """Only for a reason of its own: its deadline, or its driver."""
        assert entry.swapId not in self.flipped
        (own,) = [e for e in entries if e.swapId == entry.swapId and e.event is Event.REQUESTED]
        assert entry.generation != self.book.row.generation
        assert entry.swapId in self.given_up or (own.deadline is not None and self.now > own.deadline)

    def check_refreshed(self, entries: list[Entry], entry: Entry) -> None:
        if entry.generation is not None:
            assert entry.generation == self.book.row.generation
            assert entry.swapId not in self.flipped

    def check_lingering(self, entries: list[Entry], entry: Entry) -> None:
        life = life_of(entries, entry.generation)
        assert life is not None
        assert (life.event, life.swapId) == (Event.APPLIED, entry.swapId)
        assert self.book.row.generation != entry.generation

    def check_retired(self, entries: list[Entry], entry: Entry) -> None:
        """Replaced and not wanted, and its time is over; or a build that ended before its flip."""
        assert self.book.row.generation != entry.generation
        asked = [e for e in requested(entries) if e.generation == entry.generation]
        assert asked[-1].swapId not in open_ids(entries)
        life = life_of(entries, entry.generation)
        if life is None or life.event is Event.RETIRED:
            assert asked[-1].swapId not in self.flipped
            assert life is None or asked[-1].at > life.at
            return
        assert life.event is Event.LINGERING
        newer = [e for e in entries if e.event is Event.LINGERING and e.at > life.at]
        still = [e for e in newer if life_of(entries, e.generation) is e]
        assert self.now >= life.at + RULES.linger or len(still) >= RULES.max_lingering

    def watch_row(self, change: RowChange) -> None:
        before, after = change.before, change.after
        self.row_since = len(self.book.history.entries)
        if after.flipped != before.flipped:
            assert change.read is not None
            self.check_flip(before, after, list(change.read.entries))
        elif after.barred != before.barred:
            assert after == replace(before, barred=after.barred)
            self.check_bar(before, after)
        else:
            assert after == replace(before, lastApplied=after.lastApplied)

    def check_flip(self, before: Standing, after: Standing, read: list[Entry]) -> None:
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
        if flips and not wanted.swapId.startswith((swaps.ROLLBACK_PREFIX, swaps.UNDO_PREFIX)):
            assert now >= flips[-1].at + RULES.dwell
        assert wanted.swapId not in self.book.history.outcomes
        assert wanted.swapId not in self.flipped
        self.check_reopened(read, wanted)
        self.flipped.append(wanted.swapId)

    def check_reopened(self, read: list[Entry], wanted: Entry) -> None:
        """A generation that had retired was asked for again and has a new driver."""
        ends = [e for e in read if e.event is Event.RETIRED and e.generation == wanted.generation]
        if ends:
            starts = [e for e in read if e.event is Event.STARTING and e.generation == wanted.generation]
            assert wanted.at > ends[-1].at
            assert [e for e in starts if e.at > ends[-1].at]

    def check_bar(self, before: Standing, after: Standing) -> None:
        assert after.barred > before.barred
        entries = requested(self.book.history.entries)
        for number in range(before.barred + 1, after.barred + 1):
            own = entries[number - 1]
            is_late = own.deadline is not None and self.now > own.deadline
            has_lost = number < len(entries) or is_late or own.swapId in self.given_up
            assert has_lost or own.swapId in self.flipped
        assert after.barred != before.flipped

    def check_always(self) -> None:
        ledger, row = self.book.history, self.book.row
        assert row.epoch == len(self.flipped)
        if row.flipped:
            active = ledger.requests[row.flipped - 1]
            assert (active.swapId, active.generation) == (self.flipped[-1], row.generation)
        may = [r for r in ledger.requests if swaps.may_flip(ledger, row, r.swapId, self.now, RULES)]
        assert may in ([], [ledger.newest])
        for entry in ledger.outcomes.values():
            is_applied = entry.event is Event.APPLIED
            assert is_applied == (entry.swapId in self.flipped), entry

    # Rest

    def come_to_rest(self) -> None:
        """Everybody is healthy and comes by again and again, and time passes."""
        for _ in range(60):
            self.go_round()
            ledger, row = self.book.history, self.book.row
            if not ledger.open_requests and not ledger.lingering and set(self.drivers) <= {row.generation}:
                return
            self.wait(5)
        raise AssertionError(f"no rest: open {ledger.open_requests}, lingering {ledger.lingering}, {self.drivers}")

    def go_round(self) -> None:
        self.settle()
        self.start()
        self.restart()
        self.work(-1)
        for number in range(len(self.drivers)):
            self.ready(number)
        self.flip(0)
        self.settle()
        for number in reversed(range(len(self.drivers))):
            self.look(number)
        self.retire_silent()
        self.close()

    def check_rest(self) -> None:
        """Every request is settled once, nothing is left over, and the active one is the last that flipped."""
        self.check_always()
        ledger, row = self.book.history, self.book.row
        for request in ledger.requests:
            assert len([e for e in ledger.entries if e.swapId == request.swapId and e.event in swaps.SETTLING]) == 1
        for swap_id in [*(sent for sent, _ in self.sent), *self.rollbacks]:
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
    if ledger.is_retired(driver.generation) or swaps.is_abandoned(ledger, driver.generation):
        return True
    own = ledger.find(driver.swap_id)
    ends = [e for e in ledger.entries if e.event is Event.RETIRED and e.generation == driver.generation]
    return own is not None and any(end.at > own.at for end in ends)


def generation_for(decision: control.Decision, ledger: Ledger, standing: Standing) -> int:
    if decision.kind is control.Kind.TAKE_BACK:
        assert standing.generation is not None
        return standing.generation
    if decision.start != "resume":
        return ledger.next_generation
    found = swaps.find_resumable(ledger, standing, decision.target)
    if found is None:
        raise InputError("there is nothing to resume")
    return found


def pick(choices: Sequence[T], number: int) -> T:
    return choices[number % len(choices)]


def requested(entries: list[Entry] | tuple[Entry, ...]) -> list[Entry]:
    return [entry for entry in entries if entry.event is Event.REQUESTED]


def open_ids(entries: list[Entry]) -> list[str]:
    settled = {entry.swapId for entry in entries if entry.event in swaps.SETTLING}
    return [entry.swapId for entry in requested(entries) if entry.swapId not in settled]


def life_of(entries: list[Entry] | tuple[Entry, ...], generation: int | None) -> Entry | None:
    lives = (Event.APPLIED, Event.LINGERING, Event.RETIRED)
    found = [entry for entry in entries if entry.generation == generation and entry.event in lives]
    return found[-1] if found else None


REQUESTERS = ("ask", "ask", "rollback")
DRIVING = ("start", "restart", "work", "ready", "flip", "late_flip", "late_flip", "look", "look", "look")
ENDING = ("die", "fail")
BYSTANDING = ("settle", "settle", "settle", "retire_silent", "close")
NUMBERS = st.integers(0, 11)
PAUSES = st.tuples(st.sampled_from([Point.BEFORE, Point.BEFORE, Point.READ]), st.integers(1, 3))
TURNS = st.tuples(PAUSES, st.sampled_from(["advance", *REQUESTERS, *DRIVING, *ENDING, *BYSTANDING, "tick"]), NUMBERS)
CRASHES = st.one_of(st.none(), st.none(), st.tuples(st.sampled_from([Point.BEFORE, Point.AFTER]), st.integers(1, 2)))
PLANS = st.builds(Plan, st.lists(TURNS, max_size=3).map(tuple), CRASHES)


class SwapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.entries: tuple[Entry, ...] = ()
        self.tried = 0
        """How many entries there were when something without effect was last tried: once for each state is enough."""

    @initialize(rounds=st.sampled_from([0, 1, 2, 2, 3, 3, 3]))
    def begin(self, rounds: int) -> None:
        """Most stories begin with a generation that is active and others that linger or have retired."""
        for message in (LEFT, INNER, NATURAL)[:rounds]:
            self.world.send(message)
            self.world.go_round()
            self.world.wait(6)

    @rule(name=st.sampled_from(REQUESTERS), number=NUMBERS, plan=PLANS)
    def requester(self, name: str, number: int, plan: Plan) -> None:
        self.world.run(name, number, plan)

    @rule(plan=PLANS, steps=st.integers(1, 4))
    def next_step(self, plan: Plan, steps: int) -> None:
        for _ in range(steps - 1):
            self.world.run("advance")
        self.world.run("advance", 0, plan)

    @rule(name=st.sampled_from(DRIVING), number=NUMBERS, plan=PLANS)
    def driver(self, name: str, number: int, plan: Plan) -> None:
        self.world.run(name, number, plan)

    @rule(name=st.sampled_from(ENDING), number=NUMBERS, plan=PLANS)
    def driver_ends(self, name: str, number: int, plan: Plan) -> None:
        self.world.run(name, number, plan)

    @rule(name=st.sampled_from(BYSTANDING), number=NUMBERS, plan=PLANS)
    def bystander(self, name: str, number: int, plan: Plan) -> None:
        self.world.run(name, number, plan)

    @rule(number=NUMBERS, reason=st.sampled_from(["ask", "ask", "rollback", "tick"]), pause=PAUSES)
    def flip_and_withdrawal(self, number: int, reason: str, pause: Pause) -> None:
        """Something that is ready loses its right to flip, while one who has not heard of that is about to flip it."""
        world = self.world
        world.wait(6)
        world.settle()
        world.start()
        for driver in range(len(world.drivers)):
            world.ready(driver)
        world.run(reason, number)
        world.run("settle", 0, Plan(((pause, "late_flip", 3),)))

    @rule(number=NUMBERS, silent=st.integers(-1, 3))
    def clock(self, number: int, silent: int) -> None:
        self.world.tick(number)
        self.world.work(silent)

    @rule(rounds=st.integers(1, 14), silent=st.sampled_from([-1, -1, 0, 1, 1, 2]))
    def time_passes(self, rounds: int, silent: int) -> None:
        """Drivers work and look around, except perhaps one that hangs."""
        world = self.world
        for _ in range(rounds):
            world.wait(3)
            hanging = world.hanging(silent)
            world.work(silent)
            for generation in [generation for generation in sorted(world.drivers) if generation != hanging]:
                world.look(sorted(world.drivers).index(generation))
        world.retire_silent()

    @precondition(lambda self: self.tried < len(self.entries))
    @rule(number=st.integers(0, 200))
    def replay(self, number: int) -> None:
        """An entry's cause comes again: a message, a rollback, a driver's note, or a late word on what is settled."""
        world, book = self.world, self.world.book
        noted = [e for e in book.history.entries if e.event not in (Event.LINGERING, Event.RETIRED)]
        if not noted:
            return
        entry = pick(noted, number)
        self.tried = len(book.history.entries)
        with unchanged(world):
            if entry.event is not Event.REQUESTED:
                assert not protocol.note(book, entry)
            for swap_id, fields in world.sent:
                if swap_id == entry.swapId:
                    world.handle(swap_id, fields)
            if entry.swapId in world.rollbacks:
                world.roll_back(entry.swapId)
            if entry.swapId in book.history.outcomes:
                assert not protocol.try_flip(book, entry.swapId, world.now, RULES)
                assert not any(protocol.note(book, Entry(entry.swapId, event)) for event in swaps.SETTLING)
                protocol.give_up(book, entry.swapId, "too late", world.now)

    @precondition(lambda self: self.tried < len(self.entries))
    @rule(number=st.integers(0, 50))
    def message_without_effect(self, number: int) -> None:
        """One that is rejected or planned leaves one line and touches neither the row nor any request."""
        book = self.world.book
        before, row = book.history, book.row
        fields, event = pick(WITHOUT_EFFECT, number)
        swap_id = self.world.send(fields)
        assert book.history.outcomes[swap_id].event is event
        assert book.history.entries[:-1] == before.entries
        assert (book.history.requests, book.row) == (before.requests, row)
        self.tried = len(book.history.entries)

    @invariant()
    def keeps_its_word(self) -> None:
        entries = self.world.book.history.entries
        assert entries[: len(self.entries)] == self.entries
        self.entries = entries
        self.world.check_always()

    def teardown(self) -> None:
        self.world.come_to_rest()
        self.world.check_rest()


class unchanged:
    """Nothing is written in the block, neither an entry nor the row."""

    def __init__(self, world: World) -> None:
        self.book = world.book

    def __enter__(self) -> None:
        self.before = (self.book.history, self.book.row)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            assert self.book.history is self.before[0]
            assert self.book.row is self.before[1]


SwapMachine.TestCase.settings = settings(max_examples=220, stateful_step_count=50, deadline=None)
TestAnyStory = SwapMachine.TestCase


# The stories that matter most, told plainly


def world_with(*messages: Fields) -> World:
    """One applied swap after the other; the last one is active, the one before it lingers."""
    world = World()
    for message in messages:
        world.wait(6)
        swap_id = world.send(message)
        advance(world)
        assert outcome(world, swap_id) is Event.APPLIED
    return world


def advance(world: World, steps: int = 6) -> None:
    for _ in range(steps):
        world.work(-1)
        world.advance()


def make_ready(world: World, message: Fields) -> str:
    """A request whose next step is its flip."""
    world.wait(6)
    swap_id = world.send(message)
    advance(world, 2)
    assert swaps.may_flip(world.book.history, world.book.row, swap_id, world.now, RULES)
    return swap_id


def outcome(world: World, swap_id: str) -> Event | None:
    entry = world.book.history.outcomes.get(swap_id)
    return None if entry is None else entry.event


def events_of(world: World, generation: int) -> list[Event]:
    return [entry.event for entry in world.book.history.entries if entry.generation == generation]


def before_commit(*others: Callable[[], object]) -> dict[Pause, list[Callable[[], object]]]:
    return {(Point.BEFORE, 1): list(others)}


def rest(world: World) -> None:
    world.come_to_rest()
    world.check_rest()


def test_of_a_burst_only_the_final_state_is_built() -> None:
    world = world_with(LEFT)
    world.wait(6)
    burst = [world.send(fields) for fields in (INNER, {"usersTopic": "users-2"}, {"accountsTopic": "users"})]
    advance(world)
    assert [outcome(world, swap_id) for swap_id in burst] == [Event.SUPERSEDED, Event.SUPERSEDED, Event.APPLIED]
    assert world.book.row.target == Target("users-2", "users", "inner")
    assert world.book.row.epoch == 2
    assert [generation for generation in (2, 3) if Event.STARTING in events_of(world, generation)] == []
    rest(world)


def test_a_request_between_the_decision_and_the_commit_of_a_flip_comes_after_it() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    assert world.interleave(partial(world.flip, 0), before_commit(partial(world.send, NATURAL)))
    world.settle()
    world.wait(6)
    advance(world)
    assert [outcome(world, swap_id) for swap_id in (first, "m-3")] == [Event.APPLIED, Event.APPLIED]
    assert world.flipped == ["m-1", "m-2", "m-3"]
    rest(world)


def test_a_request_before_the_decision_to_flip_supersedes() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    second = world.send(NATURAL)
    assert not protocol.try_flip(world.book, first, world.now, RULES)
    advance(world)
    assert [outcome(world, swap_id) for swap_id in (first, second)] == [Event.SUPERSEDED, Event.APPLIED]
    rest(world)


def test_a_flip_that_was_withdrawn_before_its_commit_does_not_happen() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    others = before_commit(partial(world.send, NATURAL), world.settle)
    assert not world.interleave(partial(world.flip, 0), others)
    assert outcome(world, first) is Event.SUPERSEDED
    rest(world)
    assert world.flipped == ["m-1", "m-3"]


def test_a_withdrawn_request_does_not_flip_for_one_who_has_not_heard_of_the_newer_one() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    early = EarlyReader(world.book, world.book.history)
    world.send(NATURAL)
    world.settle()
    assert not protocol.try_flip(early, first, world.now, RULES)
    assert outcome(world, first) is Event.SUPERSEDED


def test_what_was_given_up_does_not_flip_before_that_is_written() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.run("fail", 0, Plan(crash=(Point.AFTER, 1)))
    assert (outcome(world, first), world.book.row.barred) == (None, 2)
    assert not world.flip(0)
    world.settle()
    assert outcome(world, first) is Event.FAILED
    rest(world)


def test_a_request_is_not_called_superseded_while_it_may_still_flip() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    early = EarlyReader(world.book, world.book.history)
    # The bystander has looked for what to withdraw when the newer request comes, and goes on to write outcomes.
    world.interleave(world.settle, {(Point.READ, 2): [partial(world.send, NATURAL)]})
    assert (outcome(world, first), world.book.row.barred) == (None, 0)
    assert protocol.try_flip(early, first, world.now, RULES)
    world.settle()
    assert outcome(world, first) is Event.APPLIED
    rest(world)


def test_outcomes_are_written_by_the_row_as_it_is_now() -> None:
    """While a bystander writes an outcome, others write it, and a whole swap goes by."""
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.given_up.add(first)
    world.book.change(lambda standing: swaps.bar(standing, 2))
    world.interleave(world.settle, before_commit(world.settle, partial(world.send, NATURAL), partial(advance, world)))
    assert (outcome(world, first), world.book.row.generation) == (Event.FAILED, 3)
    assert [entry.generation for entry in world.book.history.lingering] == [1]
    rest(world)


def test_the_same_request_and_outcome_are_written_once() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.fail()
    for _ in range(2):
        with unchanged(world):
            world.handle(first, INNER)
            for event in swaps.SETTLING:
                assert not protocol.note(world.book, Entry(first, event))
            assert protocol.give_up(world.book, first, "again", world.now) == world.book.history.outcomes[first]
        world.wait(200)


def test_a_withdrawal_that_comes_after_the_flip_does_not_happen() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)

    early = EarlyReader(world.book, world.book.history)
    second = world.send(NATURAL)
    flip = partial(protocol.try_flip, early, first, world.now, RULES)
    world.interleave(world.settle, before_commit(flip))
    assert (outcome(world, first), outcome(world, second)) == (Event.APPLIED, None)
    assert world.book.row.barred == 0
    rest(world)
    assert world.flipped == ["m-1", "m-2", "m-3"]


def test_a_deadline_that_passes_before_the_commit_of_a_flip_withdraws_it() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    others = before_commit(partial(world.wait, 121), world.settle)
    assert not world.interleave(partial(world.flip, 0), others)
    assert outcome(world, first) is Event.FAILED
    assert swaps.desired(world.book.history, world.book.row) == Target("users", "accounts", "left")
    rest(world)


def test_a_flip_in_time_is_not_withdrawn_by_the_deadline() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    in_time = world.now
    world.wait(121)
    flip = partial(protocol.try_flip, world.book, first, in_time, RULES)
    world.interleave(world.settle, before_commit(flip))
    assert outcome(world, first) is Event.APPLIED
    assert world.book.row.barred == 0
    rest(world)


def test_after_its_deadline_nothing_flips() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.wait(121)
    assert not world.flip(0)
    world.settle()
    assert outcome(world, first) is Event.FAILED
    again = world.send(INNER)
    advance(world)
    assert outcome(world, again) is Event.APPLIED
    rest(world)


def test_a_deadline_belongs_to_its_request() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.wait(100)
    second = world.send(NATURAL)
    world.wait(100)
    world.settle()
    assert (outcome(world, first), outcome(world, second)) == (Event.SUPERSEDED, None)
    advance(world)
    assert outcome(world, second) is Event.APPLIED


def test_take_back_refreshes_what_is_active() -> None:
    world = world_with(LEFT)
    row = world.book.row
    first = make_ready(world, INNER)
    back = world.send(LEFT)
    assert not world.flip(0)
    world.settle()
    assert (outcome(world, first), outcome(world, back)) == (Event.SUPERSEDED, Event.REFRESHED)
    assert world.book.row == replace(row, lastApplied=world.now, barred=2)
    rest(world)
    assert world.flipped == ["m-1"]


def test_take_back_that_comes_after_the_flip_flips_back_to_the_lingering_generation() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    assert world.interleave(partial(world.flip, 0), before_commit(partial(world.send, LEFT)))
    advance(world)
    assert (outcome(world, first), outcome(world, "m-3")) == (Event.APPLIED, None)
    assert world.book.history.is_lingering(1)
    world.wait(6)
    advance(world)
    assert (outcome(world, "m-3"), world.book.row.generation) == (Event.APPLIED, 1)
    assert events_of(world, 1).count(Event.STARTING) == 1
    rest(world)


def test_a_lingering_generation_undoes_the_flip_to_one_that_is_silent() -> None:
    world = world_with(LEFT, INNER)
    del world.drivers[2]
    for _ in range(10):
        world.wait(3)
        world.look(0)
        assert world.book.row.generation == 2
    world.wait(1)
    world.look(0)
    advance(world, 2)
    assert world.book.row.generation == 1
    world.settle()
    assert outcome(world, "undo-m-2") is Event.APPLIED
    assert world.book.history.is_lingering(2)
    rest(world)


def test_a_successor_that_is_seen_at_work_is_not_undone() -> None:
    world = world_with(LEFT, INNER)
    world.wait(100)
    world.work(-1)
    ledger, row = world.book.history, world.book.row
    assert protocol.undo_flip(world.book, 1, world.now, world.now, RULES, world.seen.get) is None
    assert (world.book.history, world.book.row) == (ledger, row)
    rest(world)


def test_rollback_of_a_lingering_generation_is_immediate() -> None:
    world = world_with(LEFT, INNER)
    swap_id = world.rollback()
    assert swaps.needs_run(world.book.history) is None
    advance(world, 3)
    assert (outcome(world, swap_id), world.book.row.generation) == (Event.APPLIED, 1)
    assert events_of(world, 1).count(Event.STARTING) == 1
    rest(world)


def test_rollback_needs_a_ready_of_its_own() -> None:
    """The generation was READY once, for the request that built it."""
    world = world_with(LEFT, INNER)
    swap_id = world.rollback()
    assert not protocol.try_flip(world.book, swap_id, world.now, RULES)
    world.ready(0)
    assert protocol.try_flip(world.book, swap_id, world.now, RULES)


def test_rollback_of_a_retired_generation_needs_a_new_driver() -> None:
    world = world_with(LEFT, INNER)
    rest(world)
    assert world.book.history.is_retired(1)
    swap_id = world.rollback()
    wanted = swaps.needs_run(world.book.history)
    assert wanted is not None
    assert swaps.run_id_of(world.book.history, wanted) == "generation-1.2"
    advance(world)
    assert (outcome(world, swap_id), world.book.row.generation) == (Event.APPLIED, 1)
    assert events_of(world, 1).count(Event.STARTING) == 2
    rest(world)


def test_a_rollback_that_comes_before_the_end_of_a_generation_keeps_it() -> None:
    world = world_with(LEFT, INNER)
    world.wait(9)
    world.work(-1)
    world.interleave(partial(world.look, 0), before_commit(world.rollback))
    assert Event.RETIRED not in events_of(world, 1)
    advance(world)
    assert world.book.row.generation == 1
    rest(world)


def test_a_rollback_that_comes_after_the_end_of_a_generation_resumes_it() -> None:
    world = world_with(LEFT, INNER)
    world.wait(9)
    world.work(-1)
    # The rollback has decided on a history in which the generation lingers.
    world.interleave(world.rollback, before_commit(partial(world.look, 0)))
    assert events_of(world, 1)[-2:] == [Event.RETIRED, Event.REQUESTED]
    assert swaps.needs_run(world.book.history) is not None
    assert 1 not in world.drivers
    advance(world)
    assert world.book.row.generation == 1
    rest(world)


def test_more_than_may_linger_retire_at_once() -> None:
    world = World()
    for message in (LEFT, INNER, NATURAL, {"joinType": "asof"}):
        world.send(message)
        advance(world)
        world.wait(5)
        advance(world)
    ledger = world.book.history
    assert [entry.generation for entry in ledger.lingering] == [1, 2, 3]
    early = ledger.lingering[0].at
    assert swaps.linger_end(ledger, 1, RULES) == early
    assert swaps.linger_end(ledger, 2, RULES) == ledger.lingering[1].at + RULES.linger
    rest(world)


def test_an_actor_that_crashes_after_the_flip_leaves_the_outcome_to_others() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.run("flip", 0, Plan(crash=(Point.AFTER, 1)))
    assert (world.book.row.generation, outcome(world, first)) == (2, None)
    world.settle()
    assert outcome(world, first) is Event.APPLIED
    rest(world)


def test_a_build_that_fails_leaves_the_active_generation_alone() -> None:
    world = world_with(LEFT)
    row = world.book.row
    first = make_ready(world, INNER)
    world.fail()
    assert outcome(world, first) is Event.FAILED
    assert world.book.row == replace(row, barred=2)
    world.close()
    assert events_of(world, 2)[-1] is Event.RETIRED
    assert swaps.find_resumable(world.book.history, world.book.row, Target("users", "accounts", "inner")) is None
    rest(world)


def test_no_old_timer_ends_a_generation_that_lingers_anew() -> None:
    """A bystander found generation 1 due, and comes to write it after a rollback and another swap."""
    world = world_with(LEFT, INNER)
    world.wait(9)
    world.work(-1)

    def comes_back_and_lingers_again() -> None:
        world.rollback()
        advance(world)
        world.wait(6)
        world.send(NATURAL)
        advance(world)
        assert world.book.history.is_lingering(1)

    # The reads of the driver's look: history and row for its decision, then the row for its commit.
    world.interleave(partial(world.look, 0), {(Point.READ, 3): [comes_back_and_lingers_again]})
    assert events_of(world, 1)[-1] is Event.LINGERING


def test_the_old_driver_of_a_resumed_generation_cannot_bring_it_back() -> None:
    """It hung; a bystander retired its generation, and a rollback asked for that one before the driver looked again."""
    world = world_with(LEFT, INNER)
    for _ in range(10):
        world.wait(3)
        world.work(0)
        world.retire_silent()
    assert world.book.history.is_retired(1)
    swap_id = world.rollback()
    assert swaps.needs_run(world.book.history) is not None
    wanted = world.book.history.request_of(1)
    assert wanted is not None
    protocol.note(world.book, wanted.entry(Event.READY))
    ledger, row = world.book.history, world.book.row
    assert not swaps.may_flip(ledger, row, swap_id, world.now, RULES)


def test_an_undo_that_was_superseded_by_a_failure_is_asked_for_again() -> None:
    """The active generation is still silent, and the lingering one still able to take over."""
    world = world_with(LEFT, INNER)
    del world.drivers[2]
    world.wait(31)
    world.look(0)
    assert outcome(world, "undo-m-2") is None
    failing = world.send(NATURAL)
    world.start()
    world.fail()
    assert (outcome(world, "undo-m-2"), outcome(world, failing)) == (Event.SUPERSEDED, Event.FAILED)
    world.wait(31)
    world.look(0)
    advance(world, 3)
    assert world.book.row.generation == 1
