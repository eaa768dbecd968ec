"""Takes a spare driver for a generation, or says why there is none: nobody waits for a spare for more than a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from switchyard.drivers.detached_process import KeptProcess
from switchyard.drivers.hand_off import HandOver, describe_place, list_hand_overs
from switchyard.drivers.spares import Fitness, Order, find_differences, judge_offer
from switchyard.layout import Workspace

ANSWER_SECONDS = 2.0
LOOK_SECONDS = 0.02

Say = Callable[[str], None]


def take_spare(workspace: Workspace, order: Order, wanted: Mapping[str, str], say: Say) -> KeptProcess | None:
    """Hands the order to a spare; its process, or None when a driver has to be started."""
    for hand_over in list_hand_overs(workspace):
        offer = hand_over.read_offer()
        if offer is None:
            continue
        fitness = judge_offer(offer, describe_place(), wanted)
        if fitness is Fitness.ELSEWHERE or not hand_over.claim():
            continue
        process = KeptProcess(hand_over.folder, offer.session)
        if fitness is Fitness.OUTDATED:
            parts = ", ".join(find_differences(offer.stamp, wanted))
            say(f"The spare driver was started with something else ({parts}); it is ended and replaced.")
        elif _is_accepted(hand_over, process, order):
            return process
        else:
            say("The spare driver did not answer; it is ended and replaced.")
        process.end()
    return None


def has_offer(workspace: Workspace) -> bool:
    return any(hand_over.read_offer() for hand_over in list_hand_overs(workspace))


def has_taken(workspace: Workspace, swap_id: str) -> bool:
    """Whether a spare works, or has worked, for this swap."""
    return any(_is_for(hand_over, swap_id) for hand_over in list_hand_overs(workspace))


def adopt_taken(workspace: Workspace, swap_id: str) -> KeptProcess | None:
    """The spare that works for this swap and that nobody follows yet: it may have come to its end already."""
    for hand_over in list_hand_overs(workspace):
        claim = hand_over.read_claim()
        if claim and claim.place == describe_place() and _is_for(hand_over, swap_id) and hand_over.adopt():
            return KeptProcess(hand_over.folder, claim.session)
    return None


def list_unowned(workspace: Workspace) -> list[Order]:
    """The orders of living drivers that nobody follows."""
    orders = []
    for hand_over in list_hand_overs(workspace):
        claim, order = hand_over.read_claim(), hand_over.read_order()
        is_here = claim is not None and claim.place == describe_place() and not hand_over.is_followed
        if claim and order and is_here and KeptProcess(hand_over.folder, claim.session).poll() is None:
            orders.append(order)
    return orders


def _is_for(hand_over: HandOver, swap_id: str) -> bool:
    order = hand_over.read_order()
    return order is not None and order.swapId == swap_id


def _is_accepted(hand_over: HandOver, process: KeptProcess, order: Order) -> bool:
    hand_over.give(order)
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if hand_over.read_order() is not None:
            return True
        time.sleep(LOOK_SECONDS)
    return not hand_over.withdraw()


def end_spares(workspace: Workspace) -> list[str]:
    """Ends every spare of this machine that nobody has taken; returns the names of their folders."""
    ended = []
    for hand_over in list_hand_overs(workspace):
        offer = hand_over.read_offer()
        if offer is not None and offer.place == describe_place() and hand_over.claim():
            KeptProcess(hand_over.folder, offer.session).end()
            ended.append(hand_over.folder.name)
    return ended
