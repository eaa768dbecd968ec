"""The sequences of a swap that matter most, one test for each: every race both ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from switchyard.policies import Rules, Target
from switchyard.swap import flip, flip_rules, retirement_rules, transitions
from switchyard.swap.history import SETTLING, Entry, Event, Ledger, StatusRow, run_id_of
from tests.properties.memory_history import EarlyReader, Point
from tests.properties.world import (
    FOR_GOOD,
    INNER,
    KEEPING,
    LEFT,
    NATURAL,
    RESUME_LEFT,
    RULES,
    Fields,
    Pause,
    Plan,
    World,
    unchanged,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def world_with(*messages: Fields, rules: Rules = RULES) -> World:
    """One applied swap after the other; the last one is active, the one before it lingers."""
    world = World(rules)
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
    assert flip_rules.may_flip(world.history.kept, world.history.row, swap_id, world.now, RULES)
    return swap_id


def outcome(world: World, swap_id: str) -> Event | None:
    entry = world.history.kept.outcomes.get(swap_id)
    return None if entry is None else entry.event


def events_of(world: World, generation: int) -> list[Event]:
    return [entry.event for entry in world.history.kept.entries if entry.generation == generation]


def before_commit(*others: Callable[[], object]) -> dict[Pause, list[Callable[[], object]]]:
    return {(Point.BEFORE, 1): list(others)}


def rest(world: World) -> None:
    world.come_to_rest()
    world.check_rest()


def test_of_a_burst_only_the_final_state_becomes_a_generation() -> None:
    world = world_with(LEFT)
    world.wait(6)
    burst = [world.send(fields) for fields in (INNER, {"usersTopic": "users-2"}, {"accountsTopic": "users"})]
    advance(world)
    assert [outcome(world, swap_id) for swap_id in burst] == [Event.SUPERSEDED, Event.SUPERSEDED, Event.APPLIED]
    assert world.history.row.target == Target("users-2", "users", "inner")
    assert world.history.row.epoch == 2
    assert [generation for generation in (2, 3) if Event.STARTING in events_of(world, generation)] == []
    rest(world)


@pytest.mark.parametrize("point", [(Point.READ, 1), (Point.READ, 2), (Point.BEFORE, 1)])
@pytest.mark.parametrize("fields", [INNER, LEFT, {"usersTopic": "missing"}])
def test_two_takers_of_one_message_write_one_entry(point: Pause, fields: Fields) -> None:
    """The second one takes it between the steps of the first."""
    world = world_with(LEFT)
    world.wait(6)
    taken: list[int] = []

    def take_too() -> None:
        world.take_again()
        taken.append(len(entries_of(world, "m-2")))

    world.interleave(partial(world.send, fields), {point: [take_too]})
    assert taken == [1], "the second taker was not between"
    assert len(entries_of(world, "m-2")) == 1
    advance(world)
    rest(world)
    assert outcome(world, "m-2") in (Event.APPLIED, Event.REFRESHED, Event.REJECTED)


def entries_of(world: World, swap_id: str) -> list[Entry]:
    return [entry for entry in world.history.kept.entries if entry.swapId == swap_id]


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
    assert not flip.try_flip(world.history, first, world.now, RULES)
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
    early = EarlyReader(world.history, world.history.kept)
    world.send(NATURAL)
    world.settle()
    assert not flip.try_flip(early, first, world.now, RULES)
    assert outcome(world, first) is Event.SUPERSEDED


def test_what_was_given_up_does_not_flip_before_that_is_written() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.run("fail", 0, Plan(crash=(Point.AFTER, 1)))
    assert (outcome(world, first), world.history.row.barred) == (None, 2)
    assert not world.flip(0)
    world.settle()
    assert outcome(world, first) is Event.FAILED
    assert world.history.kept.outcomes[first].detail == "its driver failed"
    rest(world)


def test_a_request_is_not_called_superseded_while_it_may_still_flip() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    early = EarlyReader(world.history, world.history.kept)
    # The bystander has looked for what to withdraw when the newer request comes, and goes on to write outcomes.
    world.interleave(world.settle, {(Point.READ, 2): [partial(world.send, NATURAL)]})
    assert (outcome(world, first), world.history.row.barred) == (None, 0)
    assert flip.try_flip(early, first, world.now, RULES)
    world.settle()
    assert outcome(world, first) is Event.APPLIED
    rest(world)


def test_outcomes_are_written_by_the_row_as_it_is_now() -> None:
    """While a bystander writes an outcome, others write it, and a whole swap goes by."""
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.given_up.add(first)
    flip.withdraw(world.history, 2)
    world.interleave(world.settle, before_commit(world.settle, partial(world.send, NATURAL), partial(advance, world)))
    assert (outcome(world, first), world.history.row.generation) == (Event.FAILED, 3)
    assert [entry.generation for entry in world.history.kept.lingering] == [1]
    rest(world)


def test_the_same_request_and_outcome_are_written_once() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.fail()
    for _ in range(2):
        with unchanged(world):
            world.handle(first, INNER)
            for event in SETTLING:
                assert not transitions.note(world.history, Entry(first, event))
            assert transitions.give_up(world.history, first, "again", world.now) == world.history.kept.outcomes[first]
        world.wait(200)


def test_a_withdrawal_that_comes_after_the_flip_does_not_happen() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)

    early = EarlyReader(world.history, world.history.kept)
    second = world.send(NATURAL)
    do_flip = partial(flip.try_flip, early, first, world.now, RULES)
    world.interleave(world.settle, before_commit(do_flip))
    assert (outcome(world, first), outcome(world, second)) == (Event.APPLIED, None)
    assert world.history.row.barred == 0
    rest(world)
    assert world.flipped == ["m-1", "m-2", "m-3"]


def test_a_deadline_that_passes_before_the_commit_of_a_flip_withdraws_it() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    others = before_commit(partial(world.wait, 121), world.settle)
    assert not world.interleave(partial(world.flip, 0), others)
    assert outcome(world, first) is Event.FAILED
    assert flip_rules.desired(world.history.kept, world.history.row) == Target("users", "accounts", "left")
    rest(world)


def test_a_flip_in_time_is_not_withdrawn_by_the_deadline() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    in_time = world.now
    world.wait(121)
    do_flip = partial(flip.try_flip, world.history, first, in_time, RULES)
    world.interleave(world.settle, before_commit(do_flip))
    assert outcome(world, first) is Event.APPLIED
    assert world.history.row.barred == 0
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


def test_a_request_with_a_longer_deadline_flips_after_the_usual_one() -> None:
    world = world_with(LEFT)
    patient = world.send({**INNER, "deadlineSeconds": 500})
    asked = world.history.kept.requests[-1]
    assert asked.deadline == world.now + timedelta(seconds=500)
    advance(world, 2)
    world.wait(400)
    world.settle()
    assert outcome(world, patient) is None
    advance(world)
    assert outcome(world, patient) is Event.APPLIED
    rest(world)


def test_a_request_with_a_shorter_deadline_fails_before_the_usual_one() -> None:
    world = world_with(LEFT)
    hurried = world.send({**INNER, "deadlineSeconds": 30})
    advance(world, 2)
    world.wait(31)
    assert not world.flip(0)
    world.settle()
    assert outcome(world, hurried) is Event.FAILED
    rest(world)


def test_the_deadline_of_a_superseded_request_is_not_handed_on() -> None:
    world = world_with(LEFT)
    world.send({**INNER, "deadlineSeconds": 500})
    world.send(NATURAL)
    assert world.history.kept.requests[-1].deadline == world.now + RULES.ready_deadline
    rest(world)


def test_the_first_generation_has_no_deadline_even_if_one_is_asked_for() -> None:
    world = World()
    world.send({**INNER, "deadlineSeconds": 1})
    assert world.history.kept.requests[-1].deadline is None


def test_an_undo_by_probation_has_the_usual_deadline() -> None:
    world = world_with(LEFT, {**INNER, "deadlineSeconds": 500})
    world.seen.clear()
    world.wait(31)
    undone = transitions.undo_flip(
        world.history, 1, world.now, world.now - timedelta(seconds=60), RULES, world.seen.get
    )
    assert undone is not None
    assert undone.deadline == world.now + RULES.ready_deadline


def test_take_back_refreshes_what_is_active() -> None:
    world = world_with(LEFT)
    row = world.history.row
    first = make_ready(world, INNER)
    back = world.send(LEFT)
    assert not world.flip(0)
    world.settle()
    assert (outcome(world, first), outcome(world, back)) == (Event.SUPERSEDED, Event.REFRESHED)
    assert world.history.row == replace(row, lastApplied=world.now, barred=2)
    rest(world)
    assert world.flipped == ["m-1"]


def test_take_back_that_comes_after_the_flip_flips_back_to_the_lingering_generation() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    assert world.interleave(partial(world.flip, 0), before_commit(partial(world.send, LEFT)))
    advance(world)
    assert (outcome(world, first), outcome(world, "m-3")) == (Event.APPLIED, None)
    assert world.history.kept.is_lingering(1)
    world.wait(6)
    advance(world)
    assert (outcome(world, "m-3"), world.history.row.generation) == (Event.APPLIED, 1)
    assert events_of(world, 1).count(Event.STARTING) == 1
    rest(world)


def test_a_lingering_generation_undoes_the_flip_to_one_that_is_silent() -> None:
    world = world_with(LEFT, INNER)
    del world.drivers[2]
    for _ in range(10):
        world.wait(3)
        world.look(0)
        assert world.history.row.generation == 2
    world.wait(1)
    world.look(0)
    advance(world, 2)
    assert world.history.row.generation == 1
    world.settle()
    assert outcome(world, "undo-m-2") is Event.APPLIED
    assert world.history.kept.is_lingering(2)
    rest(world)


def test_a_successor_that_is_seen_at_work_is_not_undone() -> None:
    world = world_with(LEFT, INNER)
    world.wait(100)
    world.work(-1)
    ledger, row = world.history.kept, world.history.row
    assert transitions.undo_flip(world.history, 1, world.now, world.now, RULES, world.seen.get) is None
    assert (world.history.kept, world.history.row) == (ledger, row)
    rest(world)


def test_rollback_of_a_lingering_generation_is_immediate() -> None:
    world = world_with(LEFT, INNER)
    swap_id = world.rollback()
    assert flip_rules.needs_run(world.history.kept) is None
    advance(world, 3)
    assert (outcome(world, swap_id), world.history.row.generation) == (Event.APPLIED, 1)
    assert events_of(world, 1).count(Event.STARTING) == 1
    rest(world)


def test_rollback_needs_a_separate_ready() -> None:
    """The generation was READY once, for the request that made it."""
    world = world_with(LEFT, INNER)
    swap_id = world.rollback()
    assert not flip.try_flip(world.history, swap_id, world.now, RULES)
    world.ready(0)
    assert flip.try_flip(world.history, swap_id, world.now, RULES)


def test_rollback_of_a_retired_generation_needs_a_new_driver() -> None:
    world = world_with(LEFT, INNER)
    rest(world)
    assert world.history.kept.is_retired(1)
    swap_id = world.rollback()
    wanted = flip_rules.needs_run(world.history.kept)
    assert wanted is not None
    assert run_id_of(world.history.kept, wanted) == "generation-1.2"
    advance(world)
    assert (outcome(world, swap_id), world.history.row.generation) == (Event.APPLIED, 1)
    assert events_of(world, 1).count(Event.STARTING) == 2
    rest(world)


def test_a_rollback_that_comes_before_the_end_of_a_generation_keeps_it() -> None:
    world = world_with(LEFT, INNER)
    world.wait(9)
    world.work(-1)
    world.interleave(partial(world.look, 0), before_commit(world.rollback))
    assert Event.RETIRED not in events_of(world, 1)
    advance(world)
    assert world.history.row.generation == 1
    rest(world)


def test_a_rollback_that_comes_after_the_end_of_a_generation_resumes_it() -> None:
    world = world_with(LEFT, INNER)
    world.wait(9)
    world.work(-1)
    # The rollback has decided on a history in which the generation lingers.
    world.interleave(world.rollback, before_commit(partial(world.look, 0)))
    assert events_of(world, 1)[-2:] == [Event.RETIRED, Event.REQUESTED]
    assert flip_rules.needs_run(world.history.kept) is not None
    assert 1 not in world.drivers
    advance(world)
    assert world.history.row.generation == 1
    rest(world)


def test_more_than_may_linger_retire_at_once() -> None:
    world = World()
    for message in (LEFT, INNER, NATURAL, {"joinType": "asof"}):
        world.send(message)
        advance(world)
        world.wait(5)
        advance(world)
    ledger = world.history.kept
    assert [entry.generation for entry in ledger.lingering] == [1, 2, 3]
    early = ledger.lingering[0].at
    assert retirement_rules.linger_end(ledger, 1, RULES) == early
    assert retirement_rules.linger_end(ledger, 2, RULES) == ledger.lingering[1].at + RULES.linger
    rest(world)


def pass_time(world: World, seconds: int, silent: int | None = None) -> None:
    """All work and look around, except perhaps the driver of one generation."""
    for _ in range(seconds // 5):
        world.wait(5)
        world.work(sorted(world.drivers).index(silent) if silent in world.drivers else -1)
        for generation in sorted(set(world.drivers) - {silent}):
            world.look(sorted(world.drivers).index(generation))
        world.retire_silent()


def lingering(world: World) -> list[int | None]:
    return [entry.generation for entry in world.history.kept.lingering]


def test_more_are_kept_than_may_linger_each_for_its_own_time() -> None:
    world = world_with(LEFT, INNER, NATURAL, {"joinType": "asof"}, rules=KEEPING)
    pass_time(world, 40)
    assert (lingering(world), set(world.drivers)) == ([1, 2, 3], {1, 2, 3, 4})
    pass_time(world, 10)
    assert lingering(world) == [2, 3]
    ends = [retirement_rules.linger_end(world.history.kept, generation, KEEPING) for generation in (1, 2)]
    assert ends == [None, world.history.kept.lingering[0].at + timedelta(seconds=60)]
    rest(world)


def test_a_kept_generation_is_taken_back_by_the_driver_that_runs() -> None:
    world = world_with(LEFT, INNER, rules=FOR_GOOD)
    pass_time(world, 3600)
    before = world.drivers[1]
    swap_id = world.rollback()
    advance(world)
    assert (outcome(world, swap_id), world.history.row.generation, lingering(world)) == (Event.APPLIED, 1, [2])
    assert world.drivers[1] is before
    rest(world)


def test_what_is_kept_for_good_ends_by_hand_and_nothing_else_does() -> None:
    world = world_with(LEFT, INNER, NATURAL, rules=FOR_GOOD)
    pending = make_ready(world, LEFT)
    with unchanged(world):
        refused = [str(world.retire_one(generation)) for generation in (3, 4, 9)]
    assert ["is active" in refused[0], pending in refused[1], "there is no" in refused[2]] == [True] * 3
    assert world.retire_one(1) is None
    assert events_of(world, 1)[-1] is Event.RETIRED
    with unchanged(world):
        assert "retired already" in str(world.retire_one(1))
    world.look(0)
    assert (lingering(world), 1 in world.drivers) == ([2], False)
    rest(world)


def test_a_generation_that_is_asked_back_is_not_retired_by_hand() -> None:
    world = world_with(LEFT, INNER, rules=FOR_GOOD)
    refused: list[str | None] = []
    swap_id = world.interleave(world.rollback, {(Point.AFTER, 1): [lambda: refused.append(world.retire_one(1))]})
    assert swap_id in str(refused[0])
    advance(world)
    assert outcome(world, swap_id) is Event.APPLIED
    rest(world)


def test_a_kept_generation_that_stays_silent_is_retired_by_others() -> None:
    world = world_with(LEFT, INNER, rules=FOR_GOOD)
    pass_time(world, 300)
    pass_time(world, 120, silent=1)
    assert lingering(world) == [1]
    pass_time(world, 60, silent=1)
    assert lingering(world) == []
    rest(world)


def test_a_kept_generation_undoes_only_the_flip_to_one_that_was_never_proven() -> None:
    for proven, is_undone in ((0, True), (10, False)):
        world = world_with(LEFT, INNER, rules=FOR_GOOD)
        pass_time(world, proven)
        pass_time(world, 60, silent=2)
        assert ("undo-m-2" in world.history.kept.outcomes or bool(world.history.kept.open_requests)) is is_undone
        rest(world)


def test_a_replaced_snapshot_is_not_kept() -> None:
    world = world_with(LEFT, rules=FOR_GOOD)
    world.backfill()
    for _ in range(2):
        world.run_backfill()
    world.wait(6)
    world.publish()
    world.flip_snapshot()
    world.settle()
    assert lingering(world) == [1]
    world.rollback()
    advance(world)
    assert (world.history.row.generation, lingering(world)) == (1, [2])
    pass_time(world, 30)
    assert lingering(world) == []
    rest(world)


def test_an_actor_that_crashes_after_the_flip_leaves_the_outcome_to_others() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    world.run("flip", 0, Plan(crash=(Point.AFTER, 1)))
    assert (world.history.row.generation, outcome(world, first)) == (2, None)
    world.settle()
    assert outcome(world, first) is Event.APPLIED
    rest(world)


def test_a_swap_that_fails_leaves_the_active_generation_alone() -> None:
    world = world_with(LEFT)
    row = world.history.row
    first = make_ready(world, INNER)
    world.fail()
    assert outcome(world, first) is Event.FAILED
    assert world.history.row == replace(row, barred=2)
    world.close()
    assert events_of(world, 2)[-1] is Event.RETIRED
    assert (
        flip_rules.find_resumable(world.history.kept, world.history.row, Target("users", "accounts", "inner")) is None
    )
    rest(world)


def test_no_old_timer_ends_a_generation_that_lingers_again() -> None:
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
        assert world.history.kept.is_lingering(1)

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
    assert world.history.kept.is_retired(1)
    swap_id = world.rollback()
    assert flip_rules.needs_run(world.history.kept) is not None
    wanted = world.history.kept.request_of(1)
    assert wanted is not None
    transitions.note(world.history, wanted.entry(Event.READY))
    ledger, row = world.history.kept, world.history.row
    assert not flip_rules.may_flip(ledger, row, swap_id, world.now, RULES)


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
    assert world.history.row.generation == 1


def make_snapshot(world: World) -> int:
    """A finished snapshot that nobody has asked for yet."""
    swap_id = world.backfill()
    for _ in range(2):
        world.run_backfill()
    world.close()
    return next(order.generation for order in world.history.kept.snapshots.values() if order.swapId == swap_id)


def publish(world: World, generation: int) -> str:
    swap_id = f"publish-{len(world.publications) + 1}"
    world.publications.append(swap_id)
    world.publish_one(swap_id, generation)
    return swap_id


def world_with_snapshot() -> tuple[World, int]:
    """A stream has retired, and a snapshot is active."""
    world = world_with(LEFT)
    snapshot = make_snapshot(world)
    world.wait(6)
    publish(world, snapshot)
    advance(world)
    rest(world)
    assert world.history.row.generation == snapshot
    return world, snapshot


def test_a_backfill_neither_withdraws_a_swap_nor_is_withdrawn_by_one_nor_by_time() -> None:
    world = world_with(LEFT)
    first = make_ready(world, INNER)
    backfill = world.backfill()
    assert world.flip(0)
    world.settle()
    assert outcome(world, first) is Event.APPLIED
    world.wait(6)
    second = world.send(NATURAL)
    advance(world)
    world.wait(100_000)
    advance(world)
    assert (outcome(world, second), outcome(world, backfill)) == (Event.APPLIED, None)
    world.run_backfill()
    world.run_backfill()
    assert outcome(world, backfill) is Event.PLANNED
    assert world.history.row.generation == 4
    rest(world)
    assert events_of(world, 3) == [Event.REQUESTED, Event.STARTING, Event.PLANNED, Event.RETIRED]


def test_a_published_snapshot_needs_no_driver_and_the_stream_before_it_no_sign_of_life() -> None:
    world = world_with(LEFT)
    snapshot = make_snapshot(world)
    world.wait(6)
    swap_id = publish(world, snapshot)
    assert flip_rules.needs_run(world.history.kept) is None
    world.flip_snapshot()
    world.settle()
    assert (outcome(world, swap_id), world.history.row.generation) == (Event.APPLIED, snapshot)
    assert Event.STARTING not in [e.event for e in world.history.kept.entries if e.swapId == swap_id]
    world.wait(40)
    kept = replace(RULES, linger=timedelta(minutes=15))
    ledger, row = world.history.kept, world.history.row
    assert not retirement_rules.should_undo(
        ledger, row, 1, world.now, row.lastApplied or world.now, kept, world.seen.get
    )
    world.look(0)
    assert world.history.kept.is_retired(1), "it does not wait for a sign of life"
    rest(world)


def test_rollback_from_a_snapshot_resumes_the_stream_and_a_second_one_flips_back_at_once() -> None:
    world, snapshot = world_with_snapshot()
    back = world.rollback()
    wanted = flip_rules.needs_run(world.history.kept)
    assert wanted is not None
    assert wanted.generation == 1
    advance(world)
    assert (outcome(world, back), world.history.row.generation) == (Event.APPLIED, 1)
    world.wait(9)
    world.work(-1)
    world.retire_silent()
    assert world.history.kept.is_retired(snapshot)
    again = world.rollback()
    assert flip_rules.needs_run(world.history.kept) is None
    world.flip_snapshot()
    world.settle()
    assert (outcome(world, again), world.history.row.generation) == (Event.APPLIED, snapshot)
    rest(world)


def test_resume_means_the_stream_and_never_a_snapshot_of_the_same_topics() -> None:
    world, _ = world_with_snapshot()
    swap_id = world.send(RESUME_LEFT)
    advance(world)
    assert (outcome(world, swap_id), world.history.row.generation) == (Event.APPLIED, 1)
    world.wait(6)
    world.send(INNER)
    advance(world)
    rest(world)
    again = world.send(RESUME_LEFT)
    advance(world)
    assert (outcome(world, again), world.history.row.generation) == (Event.APPLIED, 1), "not the newer snapshot"
    rest(world)


def test_a_publication_that_a_newer_request_supersedes_keeps_the_snapshot_for_another_time() -> None:
    world = world_with(LEFT)
    snapshot = make_snapshot(world)
    world.wait(6)
    first = publish(world, snapshot)
    world.send(INNER)
    world.flip_snapshot()
    world.settle()
    assert outcome(world, first) is Event.SUPERSEDED
    rest(world)
    assert world.history.kept.is_finished(snapshot)
    again = publish(world, snapshot)
    world.wait(6)
    advance(world)
    assert (outcome(world, again), world.history.row.generation) == (Event.APPLIED, snapshot)
    rest(world)


def test_a_snapshot_that_is_not_finished_cannot_be_published() -> None:
    world = world_with(LEFT)
    backfill = world.backfill()
    assert outcome(world, publish(world, 2)) is Event.REJECTED
    world.run_backfill()
    world.broken.add(backfill)
    transitions.note(world.history, world.history.kept.snapshots[2].entry(Event.FAILED))
    world.close()
    assert outcome(world, publish(world, 2)) is Event.REJECTED
    assert world.history.kept.is_retired(2)
    rest(world)


def test_a_snapshot_that_is_not_finished_does_not_flip_even_if_it_was_asked_for() -> None:
    target = Target("users", "accounts", "left")
    asked = [("backfill-a", Event.REQUESTED), ("publish-a", Event.REQUESTED), ("publish-a", Event.READY)]
    entries = [Entry(swap_id, event, 1, target, "earliest") for swap_id, event in asked]
    assert not flip_rules.may_flip(Ledger(tuple(entries)), StatusRow(), "publish-a", NOW, RULES)
    finished = [*entries, Entry("backfill-a", Event.PLANNED, 1, target, "earliest")]
    assert flip_rules.may_flip(Ledger(tuple(finished)), StatusRow(), "publish-a", NOW, RULES)
