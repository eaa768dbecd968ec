"""The history of all swaps and what follows from it: its entries, requests, generations, and the status row. Pure.

A request is one accepted command: "make this generation active". Requests are numbered in the order in which they were
written. A backfill is a command too, but asks for rows only: a snapshot of history in a separate generation. It has no
number, so it neither withdraws a request nor is withdrawn by one. To publish a finished snapshot is a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from switchyard.policies import Target


class Event(StrEnum):
    REQUESTED = "REQUESTED"
    STARTING = "STARTING"
    READY = "READY"
    APPLIED = "APPLIED"
    REFRESHED = "REFRESHED"
    REJECTED = "REJECTED"
    SUPERSEDED = "SUPERSEDED"
    FAILED = "FAILED"
    PLANNED = "PLANNED"
    LINGERING = "LINGERING"
    RETIRED = "RETIRED"


SETTLING = frozenset({Event.APPLIED, Event.REFRESHED, Event.REJECTED, Event.SUPERSEDED, Event.FAILED, Event.PLANNED})
FINISHED = Event.PLANNED
"""Ends the command for a snapshot whose rows are proven. The name of the event is contract."""
LIFE = frozenset({Event.APPLIED, Event.LINGERING, Event.RETIRED})
"""Events that move a generation on: it is active, lingers, or has ended."""

HOSTED_PREFIX = "run:"
ROLLBACK_PREFIX = "rollback-"
UNDO_PREFIX = "undo-"
BY_HAND_PREFIX = "by-hand-"
BACKFILL_PREFIX = "backfill-"
PUBLISH_PREFIX = "publish-"
BOOT_ID = "boot"
"""The beginnings of the ids of commands that do not come from the control topic. They are stored, so they stay."""


@dataclass(frozen=True)
class Entry:
    """One row of swap_history. The history store sets `at` when it writes the row."""

    swapId: str
    event: Event
    generation: int | None = None
    target: Target | None = None
    start: str | None = None
    requestedBy: str = ""
    detail: str = ""
    deadline: datetime | None = None
    at: datetime = datetime.min


@dataclass(frozen=True)
class Request:
    """An accepted command: make a generation active."""

    number: int
    swapId: str
    generation: int
    target: Target
    start: str
    requestedBy: str
    at: datetime
    deadline: datetime | None = None

    def entry(self, event: Event, detail: str = "") -> Entry:
        return Entry(self.swapId, event, self.generation, self.target, self.start, self.requestedBy, detail)

    @property
    def is_undo(self) -> bool:
        # An undo does not wait for the dwell: it repairs the flip that the dwell is counted from.
        return self.swapId.startswith((ROLLBACK_PREFIX, UNDO_PREFIX))

    @property
    def is_hosted(self) -> bool:
        """Whether the Airflow run that asked for it is also the run of its driver."""
        return self.swapId.startswith(HOSTED_PREFIX) and self.requestedBy.startswith("airflow:")


@dataclass(frozen=True)
class StatusRow:
    """The status row with its two markers. `generation` is None until the first flip."""

    generation: int | None = None
    target: Target | None = None
    lastApplied: datetime | None = None
    epoch: int = 0
    flipped: int = 0
    barred: int = 0
    barred_because: str = field(default="", compare=False)
    """Why request number `barred` was given up; empty if there was no such reason. Its outcome repeats it."""


SignOfLife = Callable[[int], datetime | None]
"""Generation → when its driver last reported"""


@dataclass(frozen=True)
class Ledger:
    """The history, in the order in which it was written, and what follows from it."""

    entries: tuple[Entry, ...] = field(default=())

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Ledger:
        # Data files come in no order, also after a compaction. The store gives each entry a later time than the last.
        return cls(tuple(sorted(entries, key=lambda entry: entry.at)))

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        asked = [e for e in self.entries if e.event is Event.REQUESTED and not is_snapshot_id(e.swapId)]
        return tuple(_request(number, entry) for number, entry in enumerate(asked, 1))

    @cached_property
    def snapshots(self) -> dict[int, Request]:
        """The command for each snapshot, by its generation."""
        # Number 0: such a command never flips by itself.
        asked = [e for e in self.entries if e.event is Event.REQUESTED and is_snapshot_id(e.swapId)]
        return {snapshot.generation: snapshot for snapshot in (_request(0, entry) for entry in asked)}

    def is_snapshot(self, generation: int | None) -> bool:
        return generation in self.snapshots

    def is_finished(self, generation: int) -> bool:
        snapshot = self.snapshots.get(generation)
        outcome = self.outcomes.get(snapshot.swapId) if snapshot else None
        return outcome is not None and outcome.event is FINISHED

    @cached_property
    def outcomes(self) -> dict[str, Entry]:
        return {entry.swapId: entry for entry in reversed(self.entries) if entry.event in SETTLING}

    @cached_property
    def _events(self) -> dict[str, set[Event]]:
        found: dict[str, set[Event]] = {}
        for entry in self.entries:
            found.setdefault(entry.swapId, set()).add(entry.event)
        return found

    def is_known(self, swap_id: str) -> bool:
        return swap_id in self._events

    def has(self, swap_id: str, event: Event) -> bool:
        return event in self._events.get(swap_id, ())

    def is_open(self, request: Request) -> bool:
        return request.swapId not in self.outcomes

    @cached_property
    def open_requests(self) -> list[Request]:
        return [request for request in self.requests if self.is_open(request)]

    @property
    def newest(self) -> Request | None:
        return self.requests[-1] if self.requests else None

    @property
    def pending(self) -> Request | None:
        """The newest request, if it has no outcome yet."""
        newest = self.newest
        return newest if newest and self.is_open(newest) else None

    def find(self, swap_id: str) -> Request | None:
        return next((request for request in self.requests if request.swapId == swap_id), None)

    def find_command(self, swap_id: str) -> Request | None:
        """Find a request or the command for a snapshot."""
        snapshots = (snapshot for snapshot in self.snapshots.values() if snapshot.swapId == swap_id)
        return self.find(swap_id) or next(snapshots, None)

    @cached_property
    def _requests_of(self) -> dict[int, list[Request]]:
        found: dict[int, list[Request]] = {}
        for request in self.requests:
            found.setdefault(request.generation, []).append(request)
        return found

    def requests_of(self, generation: int) -> list[Request]:
        return self._requests_of.get(generation, [])

    def request_of(self, generation: int) -> Request | None:
        """Return the newest request for a generation; one that was resumed has several."""
        return next(reversed(self.requests_of(generation)), None)

    def command_of(self, generation: int) -> Request | None:
        """Return the newest request for a generation, else the command for the snapshot."""
        return self.request_of(generation) or self.snapshots.get(generation)

    @cached_property
    def _lives(self) -> dict[int | None, Entry]:
        return {entry.generation: entry for entry in self.entries if entry.event in LIFE}

    def last_life(self, generation: int) -> Entry | None:
        return self._lives.get(generation)

    def life_request(self, generation: int) -> Request:
        """Return the request by which a generation became active."""
        last = self.last_life(generation)
        request = self.find(last.swapId) if last else None
        if request is None:
            raise ValueError(f"generation {generation} was never active")
        return request

    def was_active(self, generation: int) -> bool:
        return generation in self._flipped

    def is_retired(self, generation: int) -> bool:
        """Return whether a generation has ended and no open request asks for it."""
        asked = self.request_of(generation)
        return self.has_ended(generation) and (asked is None or not self.is_open(asked))

    def has_ended(self, generation: int) -> bool:
        """Return whether a generation has ended, also if an open request asks for it: that needs a new driver."""
        last = self.last_life(generation)
        return last is not None and last.event is Event.RETIRED

    def is_removed(self, generation: int) -> bool:
        return generation in self.removed

    @cached_property
    def removed(self) -> frozenset[int]:
        """Generations that retired twice, without a request in between: their rows and checkpoint are removed."""
        retired: set[int | None] = set()
        removed: set[int] = set()
        for entry in self.entries:
            if entry.event is Event.REQUESTED:
                retired.discard(entry.generation)
            elif entry.event is Event.RETIRED and entry.generation is not None:
                if entry.generation in retired:
                    removed.add(entry.generation)
                retired.add(entry.generation)
        return frozenset(removed)

    def is_lingering(self, generation: int) -> bool:
        return any(entry.generation == generation for entry in self.lingering)

    @cached_property
    def lingering(self) -> list[Entry]:
        """The LINGERING entry of each generation that lingers, oldest first."""
        lives = self._lives.values()
        return sorted((life for life in lives if life.event is Event.LINGERING), key=lambda life: life.at)

    @cached_property
    def generations(self) -> list[int]:
        return sorted({request.generation for request in self.requests} | set(self.snapshots))

    @property
    def next_generation(self) -> int:
        return 1 + max(self.generations, default=0)

    @cached_property
    def flips(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.event is Event.APPLIED]

    @cached_property
    def _flipped(self) -> frozenset[int | None]:
        return frozenset(entry.generation for entry in self.flips)


class SwapHistory(Protocol):
    """Both commits are compare-and-set: False means that another writer was first, and nothing is written."""

    def ledger(self) -> Ledger: ...

    def status_row(self) -> StatusRow: ...

    def commit_next(self, ledger: Ledger, entries: Sequence[Entry]) -> bool:
        """Write entries as the version after `ledger`, as it was read here."""

    def commit_row(self, before: StatusRow, after: StatusRow) -> bool:
        """Replace the status row, if it is still the one that was read here."""


def is_snapshot_id(swap_id: str) -> bool:
    return swap_id.startswith(BACKFILL_PREFIX)


def _request(number: int, entry: Entry) -> Request:
    if entry.generation is None or entry.target is None:
        raise ValueError(f"the request {entry.swapId} names no generation")
    start, by = entry.start or "latest", entry.requestedBy
    return Request(number, entry.swapId, entry.generation, entry.target, start, by, entry.at, entry.deadline)


def first_swap_id(swap_id: str) -> str:
    """Return the id of the first try: `boot~3` is the third try of `boot`."""
    return re.sub(r"~\d+$", "", swap_id)


def next_swap_id(ledger: Ledger, swap_id: str) -> str:
    """Return the id, or with `~2`, `~3`, … if the command of that id has ended without being applied."""
    ended = {known for known, outcome in ledger.outcomes.items() if outcome.event is not Event.APPLIED}
    candidates = [swap_id, *(f"{swap_id}~{number}" for number in range(2, len(ended) + 3))]
    return next(candidate for candidate in candidates if candidate not in ended)


def run_id_of(ledger: Ledger, request: Request) -> str:
    """Return the id of a request's Airflow run. It follows from the request, so asking twice starts one run."""
    if request.is_hosted:
        return request.swapId.removeprefix(HOSTED_PREFIX)
    nth = ledger.requests_of(request.generation).index(request) + 1
    return f"generation-{request.generation}" + (f".{nth}" if nth > 1 else "")
