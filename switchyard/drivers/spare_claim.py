"""Take a spare driver for a generation. End a spare that does not answer at once; then a driver is submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from switchyard.deadline import Deadline
from switchyard.drivers.detached_process import DetachedProcess
from switchyard.drivers.hand_off import HandOff, describe_place, list_hand_offs
from switchyard.drivers.spares import Fitness, Order, find_differences, judge_offer
from switchyard.layout import Workspace

ANSWER_SECONDS = 2.0
ANSWER_POLL_SECONDS = 0.02

Say = Callable[[str], None]


def take_spare(workspace: Workspace, order: Order, wanted: Mapping[str, str], say: Say) -> DetachedProcess | None:
    """Give the order to a spare and return its process; None if a driver has to be started."""
    for hand_off in list_hand_offs(workspace):
        offer = hand_off.read_offer()
        if offer is None:
            continue
        fitness = judge_offer(offer, describe_place(), wanted)
        if fitness is Fitness.ELSEWHERE or not hand_off.claim():
            continue
        process = DetachedProcess(hand_off.folder, offer.session)
        if fitness is Fitness.OUTDATED:
            parts = ", ".join(find_differences(offer.fingerprint, wanted))
            say(f"The spare driver was started with something else ({parts}); it is ended and replaced.")
        elif _is_accepted(hand_off, process, order):
            return process
        else:
            say("The spare driver did not answer; it is ended and replaced.")
        process.end()
    return None


def has_offer(workspace: Workspace) -> bool:
    return any(hand_off.read_offer() for hand_off in list_hand_offs(workspace))


def has_taken(workspace: Workspace, swap_id: str) -> bool:
    """Return whether a spare works, or has worked, for this swap."""
    return any(_is_for(hand_off, swap_id) for hand_off in list_hand_offs(workspace))


def adopt_taken(workspace: Workspace, swap_id: str) -> DetachedProcess | None:
    """Adopt the spare that works for this swap, if no task follows it yet. It may have ended already."""
    for hand_off in list_hand_offs(workspace):
        claim = hand_off.read_claim()
        if claim and claim.place == describe_place() and _is_for(hand_off, swap_id) and hand_off.adopt():
            return DetachedProcess(hand_off.folder, claim.session)
    return None


def list_unowned(workspace: Workspace) -> list[Order]:
    """List the orders of living drivers that no task follows."""
    orders = []
    for hand_off in list_hand_offs(workspace):
        claim, order = hand_off.read_claim(), hand_off.read_order()
        is_here = claim is not None and claim.place == describe_place() and not hand_off.is_followed
        if claim and order and is_here and DetachedProcess(hand_off.folder, claim.session).poll() is None:
            orders.append(order)
    return orders


def _is_for(hand_off: HandOff, swap_id: str) -> bool:
    order = hand_off.read_order()
    return order is not None and order.swapId == swap_id


def _is_accepted(hand_off: HandOff, process: DetachedProcess, order: Order) -> bool:
    hand_off.give(order)
    for _ in Deadline(ANSWER_SECONDS).polls(ANSWER_POLL_SECONDS):
        if hand_off.read_order() is not None:
            return True
        if process.poll() is not None:
            break
    return not hand_off.withdraw()


def end_spares(workspace: Workspace) -> list[str]:
    """End every spare of this machine that is not taken; return the names of their folders."""
    ended = []
    for hand_off in list_hand_offs(workspace):
        offer = hand_off.read_offer()
        if offer is not None and offer.place == describe_place() and hand_off.claim():
            DetachedProcess(hand_off.folder, offer.session).end()
            ended.append(hand_off.folder.name)
    return ended
