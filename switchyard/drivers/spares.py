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
"""Long, because no swap waits for a rehearsal, and a new one after a timeout would load a busy machine even more."""
FORGOTTEN_SECONDS = 10.0
"""A process that has claimed a spare and gives it no order for so long has died."""


class Offer(BaseModel, frozen=True):
    """A driver that is warm and waits."""

    pid: int = Field(gt=1)
    session: int = Field(gt=1)
    """The session of the driver: its Python process and its JVM are in it, and nothing else."""
    place: str
    """The machine it runs on: the process ids of another machine mean nothing here."""
    fingerprint: dict[str, str]
    """What it was started with, one short text for each part."""


class Order(BaseModel, frozen=True):
    """What a waiting driver is told: the spec of the generation says the rest. Of the Kafka settings only the path."""

    generation: int = Field(ge=1)
    kafkaProperties: Path
    swapId: str = ""
    """The swap that the driver works for. The task `stream` of its run finds the driver by this id."""


def find_differences(fingerprint: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """The names of the parts that are not the same."""
    return sorted(name for name in fingerprint.keys() | wanted.keys() if fingerprint.get(name) != wanted.get(name))


class Fitness(StrEnum):
    FIT = "fit"
    ELSEWHERE = "on another machine"
    OUTDATED = "started with something else than a driver is started with now"


def judge_offer(offer: Offer, place: str, wanted: Mapping[str, str]) -> Fitness:
    """Leave a spare of another machine alone; an outdated one is ended and replaced."""
    if offer.place != place:
        return Fitness.ELSEWHERE
    return Fitness.OUTDATED if find_differences(offer.fingerprint, wanted) else Fitness.FIT


def may_warm_up(ledger: Ledger, status_row: StatusRow) -> bool:
    """Warming up takes all processors for seconds: not during a swap, and not before a first generation is active."""
    return status_row.generation is not None and ledger.pending is None


class Patience(StrEnum):
    """What a driver that waits for its order does next."""

    WAIT = "wait"
    STOP = "it was asked to stop"
    ORPHANED = "the task that started it is gone"
    FORGOTTEN = "it was claimed, but no order came"


@dataclass(frozen=True)
class Waiting:
    is_asked_to_stop: bool
    is_orphaned: bool
    claimed_seconds: float | None
    """How long ago it was claimed; None while it is not."""


def choose_patience(seen: Waiting) -> Patience:
    """A claim protects the spare from everything but a stop: its order is on the way."""
    if seen.is_asked_to_stop:
        return Patience.STOP
    if seen.claimed_seconds is not None:
        return Patience.FORGOTTEN if seen.claimed_seconds > FORGOTTEN_SECONDS else Patience.WAIT
    return Patience.ORPHANED if seen.is_orphaned else Patience.WAIT
