"""Whatever is asked, in which order actors run, where they crash and how the clock moves: the protocol keeps its word.

`World` is everybody who takes part, each step as the real actor takes it. Its watchers see every commit and know the
promises on their own: they ask the history, never the functions under test.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from switchyard.policies import Rules
from switchyard.swap import flip, transitions
from switchyard.swap.history import SETTLING, Entry, Event
from tests.properties.memory_history import Point
from tests.properties.world import (
    FOR_GOOD,
    INNER,
    KEEPING,
    LEFT,
    NATURAL,
    RULES,
    WITHOUT_EFFECT,
    Pause,
    Plan,
    World,
    pick,
    unchanged,
)

REQUESTERS = ("ask", "ask", "rollback", "backfill", "publish")
DRIVER_STEPS = ("start", "restart", "work", "ready", "flip", "late_flip", "late_flip", "look", "look", "look")
ENDING = ("die", "fail", "retire_by_hand")
BYSTANDERS = ("settle", "settle", "settle", "retire_silent", "close", "run_backfill", "run_backfill", "flip_snapshot")
NUMBERS = st.integers(0, 12)
PAUSES = st.tuples(st.sampled_from([Point.BEFORE, Point.BEFORE, Point.READ]), st.integers(1, 3))
INTERRUPTIONS = st.tuples(
    PAUSES,
    st.sampled_from(["advance", *REQUESTERS, "take_again", *DRIVER_STEPS, *ENDING, *BYSTANDERS, "tick"]),
    NUMBERS,
)
CRASHES = st.one_of(st.none(), st.none(), st.tuples(st.sampled_from([Point.BEFORE, Point.AFTER]), st.integers(1, 2)))
PLANS = st.builds(Plan, st.lists(INTERRUPTIONS, max_size=3).map(tuple), CRASHES)


class SwapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.entries: tuple[Entry, ...] = ()
        self.tried = 0
        """How many entries there were when something without effect was last tried: once for each state is enough."""

    @initialize(
        rounds=st.sampled_from([0, 1, 2, 2, 3, 3, 3]), rules=st.sampled_from([RULES, RULES, RULES, KEEPING, FOR_GOOD])
    )
    def begin(self, rounds: int, rules: Rules) -> None:
        """Most runs begin with a generation that is active and others that linger, are kept or have retired."""
        self.world = World(rules)
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

    @rule(name=st.sampled_from(DRIVER_STEPS), number=NUMBERS, plan=PLANS)
    def driver(self, name: str, number: int, plan: Plan) -> None:
        self.world.run(name, number, plan)

    @rule(name=st.sampled_from(ENDING), number=NUMBERS, plan=PLANS)
    def driver_ends(self, name: str, number: int, plan: Plan) -> None:
        self.world.run(name, number, plan)

    @rule(name=st.sampled_from(BYSTANDERS), number=NUMBERS, plan=PLANS)
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
        world, history = self.world, self.world.history
        noted = [e for e in history.kept.entries if e.event not in (Event.LINGERING, Event.RETIRED)]
        if not noted:
            return
        entry = pick(noted, number)
        self.tried = len(history.kept.entries)
        with unchanged(world):
            if entry.event is not Event.REQUESTED:
                assert not transitions.note(history, entry)
            for swap_id, fields in world.sent:
                if swap_id == entry.swapId:
                    world.handle(swap_id, fields)
            if entry.swapId in world.rollbacks:
                world.roll_back(entry.swapId)
            if entry.swapId in world.backfills:
                world.order(entry.swapId)
            if entry.swapId in world.publications and entry.generation is not None:
                world.publish_one(entry.swapId, entry.generation)
            if entry.swapId in history.kept.outcomes:
                assert not flip.try_flip(history, entry.swapId, world.now, world.rules)
                assert not any(transitions.note(history, Entry(entry.swapId, event)) for event in SETTLING)
                transitions.give_up(history, entry.swapId, "too late", world.now)

    @precondition(lambda self: self.tried < len(self.entries))
    @rule(number=st.integers(0, 50))
    def message_without_effect(self, number: int) -> None:
        """One that is rejected or planned leaves one line and touches neither the row nor any request."""
        history = self.world.history
        before, row = history.kept, history.row
        fields, event = pick(WITHOUT_EFFECT, number)
        swap_id = self.world.send(fields)
        assert history.kept.outcomes[swap_id].event is event
        assert history.kept.entries[:-1] == before.entries
        assert (history.kept.requests, history.row) == (before.requests, row)
        self.tried = len(history.kept.entries)

    @rule(number=NUMBERS)
    def backfill_beside_everything(self, number: int) -> None:
        """From its order to its end a backfill touches neither the row nor any request, whatever is under way."""
        world = self.world
        before, row = world.history.kept, world.history.row
        swap_id = world.backfill()
        for _ in range(2):
            world.run_backfill(len(before.snapshots) + number)
        assert (world.history.kept.requests, world.history.row) == (before.requests, row)
        assert world.history.kept.pending == before.pending
        assert swap_id in world.history.kept._events

    @rule(number=NUMBERS, plan=PLANS)
    def published_snapshot(self, number: int, plan: Plan) -> None:
        world = self.world
        world.wait(6)
        world.settle()
        world.run("publish", number, plan)
        world.run("flip_snapshot", 0, plan)

    @invariant()
    def keeps_its_word(self) -> None:
        entries = self.world.history.kept.entries
        assert entries[: len(self.entries)] == self.entries
        self.entries = entries
        self.world.check_always()

    def teardown(self) -> None:
        self.world.come_to_rest()
        self.world.check_rest()


SwapMachine.TestCase.settings = settings(max_examples=220, stateful_step_count=50, deadline=None)
TestAnySequence = SwapMachine.TestCase
