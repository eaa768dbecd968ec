"""The hand-off of a spare driver: in every order of steps and with a death at any of them, at most one order is
carried out, and the process that gave it knows whether it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.drivers.hand_off import HandOff
from switchyard.drivers.spares import Offer, Order
from switchyard.layout import Workspace

TAKERS = (1, 2, 3)
SPARE, LAUNCHER = 0, 9
Steps = Iterator[None]


@dataclass
class Told:
    """What each of them believes."""

    accepted: list[int] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    cold: set[int] = field(default_factory=set)
    is_ended: bool = False


def order_for(generation: int) -> Order:
    return Order(generation=generation, kafkaProperties=Path("kafka"))


def take(hand_off: HandOff, generation: int, told: Told) -> Steps:
    """What `spare_claim.take_spare` does, one step at a time."""
    if not hand_off.claim():
        told.cold.add(generation)
        return
    yield
    hand_off.give(order_for(generation))
    for _ in range(3):
        yield
        if hand_off.read_order() is not None:
            told.taken.add(generation)
            return
    yield
    (told.cold if hand_off.withdraw() else told.taken).add(generation)


def wait(hand_off: HandOff, told: Told) -> Steps:
    yield
    hand_off.offer(Offer(pid=2, session=2, place="here", fingerprint={}))
    while (order := hand_off.accept()) is None:
        yield
    told.accepted.append(order.generation)


def end(hand_off: HandOff, told: Told) -> Steps:
    """The task that started it wants to end it: only with the claim in its hand."""
    while hand_off.read_offer() is None:
        yield
        if hand_off.is_claimed:
            return
    yield
    told.is_ended = hand_off.claim()


ACTORS = st.sampled_from([SPARE, *TAKERS, LAUNCHER])


# An actor may take several steps in a row: the others are slow then.
RUNS = st.lists(st.tuples(ACTORS, st.integers(1, 7)), max_size=20)


@settings(max_examples=300, deadline=None)
@given(runs=RUNS, crashes=st.lists(st.tuples(st.integers(0, 59), ACTORS), max_size=2))
def test_one_order_at_most_is_carried_out_and_its_giver_knows(
    runs: list[tuple[int, int]], crashes: list[tuple[int, int]]
) -> None:
    schedule = [number for number, steps in runs for _ in range(steps)]
    with TemporaryDirectory() as folder:
        hand_off, told = HandOff.create(Workspace(Path(folder)), {}), Told()
        actors = {number: take(hand_off, number, told) for number in TAKERS}
        actors |= {SPARE: wait(hand_off, told), LAUNCHER: end(hand_off, told)}
        for moment, number in enumerate(schedule):
            for _, victim in filter(lambda crash: crash[0] == moment, crashes):
                actors.pop(victim, None)
            if number in actors and next(actors[number], "over") == "over":
                del actors[number]
        finish(actors)
    assert len(told.accepted) <= 1
    assert told.taken <= set(told.accepted)
    assert told.cold.isdisjoint(told.accepted)
    assert not (told.is_ended and told.accepted)
    crashed = {victim for _, victim in crashes}
    assert set(TAKERS) - crashed <= told.taken | told.cold, "somebody waits for a spare for ever"


def finish(actors: dict[int, Steps]) -> None:
    """Every living actor goes on, one step each, for longer than any of them needs."""
    for _ in range(20):
        for number in list(actors):
            if next(actors[number], "over") == "over":
                del actors[number]


def test_with_nobody_in_its_way_a_taker_gets_the_spare() -> None:
    with TemporaryDirectory() as folder:
        hand_off, told = HandOff.create(Workspace(Path(folder)), {}), Told()
        finish({SPARE: wait(hand_off, told)} | {1: take(hand_off, 1, told)})
        assert (told.accepted, told.cold) == ([], {1}), "nobody can claim what was not offered"
        second = Told()
        finish({2: take(hand_off, 2, second)})
        assert second.taken == set()
    with TemporaryDirectory() as folder:
        hand_off, told = HandOff.create(Workspace(Path(folder)), {}), Told()
        spare = wait(hand_off, told)
        for _ in range(2):
            next(spare)
        finish({SPARE: spare, 1: take(hand_off, 1, told)})
        assert (told.accepted, told.taken) == ([1], {1})
