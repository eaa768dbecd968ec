"""The spare driver, decided as data: what it offers, what it is ordered to do, and whether it may be taken.

Pure: no I/O, no clock. `drivers/hand_off.py` keeps offers and orders as files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, Field

from switchyard.swap.history import Ledger, StatusRow

MOST_REHEARSAL_SECONDS = 300.0
# Long, because no swap waits for a rehearsal, and a new one after a timeout would load a busy machine even more.
ABANDONED_SECONDS = 10.0
"""A process that has claimed a spare and has given it no order for so long has died."""


class Offer(BaseModel, frozen=True):
    pid: int = Field(gt=1)
    session: int = Field(gt=1)
    """Holds the Python process and the JVM of the driver, and nothing else."""
    place: str
    """The machine: process ids of another one mean nothing here."""
    fingerprint: dict[str, str]
    """What it was started with, one short text for each part."""


class Order(BaseModel, frozen=True):
    """What a spare is told to do; the rest stands in the spec of the generation."""

    generation: int = Field(ge=1)
    # The path and not the settings: an order is a file, and must hold no secret.
    kafkaProperties: Path
    swapId: str = ""
    """The task `stream` of this swap's run finds the driver by this id."""


def find_differences(fingerprint: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    return sorted(name for name in fingerprint.keys() | wanted.keys() if fingerprint.get(name) != wanted.get(name))


class Fitness(StrEnum):
    FIT = "fit"
    ELSEWHERE = "on another machine"
    OUTDATED = "started with something else than a driver is started with now"


def judge_offer(offer: Offer, place: str, wanted: Mapping[str, str]) -> Fitness:
    if offer.place != place:
        return Fitness.ELSEWHERE
    return Fitness.OUTDATED if find_differences(offer.fingerprint, wanted) else Fitness.FIT


def may_warm_up(ledger: Ledger, status_row: StatusRow) -> bool:
    # Warming up takes all processors for seconds, which a swap or the first generation needs.
    return status_row.generation is not None and ledger.pending is None


class WaitDecision(StrEnum):
    """What a spare that waits for its order does next, and why."""

    WAIT = "wait"
    STOP = "it was asked to stop"
    ORPHANED = "the task that started it is gone"
    ABANDONED = "it was claimed, but no order came"


@dataclass(frozen=True)
class Waiting:
    is_asked_to_stop: bool
    is_orphaned: bool
    claimed_seconds: float | None
    """How long ago it was claimed; None while it is not."""


def decide_wait(seen: Waiting) -> WaitDecision:
    if seen.is_asked_to_stop:
        return WaitDecision.STOP
    # A claimed spare stays although its task is gone: its order is on the way.
    if seen.claimed_seconds is not None:
        return WaitDecision.ABANDONED if seen.claimed_seconds > ABANDONED_SECONDS else WaitDecision.WAIT
    return WaitDecision.ORPHANED if seen.is_orphaned else WaitDecision.WAIT
