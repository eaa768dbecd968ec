"""The state machine of a swap: what the history and the status row mean, and what is due. Pure: no I/O, no clock.

A request is one accepted command: "make this generation active". Requests are numbered in the order in which they were
written. Two markers are committed with the status row and decide who may still flip:

- `flipped`: the number of the request that made the active generation active;
- `barred`: requests up to this number can no longer flip, because a newer one, a deadline or a failure came first.

A flip needs `barred < number`, a withdrawal needs `flipped != number`, and both are compare-and-sets of the same row:
of the two exactly one happens. Timers are computed from entries of the request or generation they are for.

A backfill is a command too, but asks for rows only: a snapshot of history in a separate generation. It has no number,
so it neither withdraws a request nor is withdrawn by one. To publish a finished snapshot is a request like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property

from switchyard.policies import Rules, Target


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
"""How the command for a snapshot ends once its rows are there and proven. The event's name is contract."""
LIFE = frozenset({Event.APPLIED, Event.LINGERING, Event.RETIRED})
"""Events after which a generation stands somewhere else."""

HOSTED_PREFIX = "run:"
ROLLBACK_PREFIX = "rollback-"
UNDO_PREFIX = "undo-"
BY_HAND_PREFIX = "by-hand-"
BACKFILL_PREFIX = "backfill-"
PUBLISH_PREFIX = "publish-"
BOOT_ID = "boot"


@dataclass(frozen=True)
class Entry:
    """One row of swap_history. `at` is given when it is written."""

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
        """An undo must not wait for the dwell: it repairs the flip that the dwell is counted from."""
        return self.swapId.startswith((ROLLBACK_PREFIX, UNDO_PREFIX))

    @property
    def is_hosted(self) -> bool:
        """Whether the Airflow run that asked for it runs the driver itself."""
        return self.swapId.startswith(HOSTED_PREFIX) and self.requestedBy.startswith("airflow:")


@dataclass(frozen=True)
class StatusRow:
    """The status row with its two markers. `generation` is None until something was active."""

    generation: int | None = None
    target: Target | None = None
    lastApplied: datetime | None = None
    epoch: int = 0
    flipped: int = 0
    barred: int = 0
    barred_because: str = field(default="", compare=False)
    """Why the request of this very number was given up, for the actor that writes its outcome; else empty."""


SignOfLife = Callable[[int], datetime | None]
"""When a generation's driver was last seen at work."""


@dataclass(frozen=True)
class Ledger:
    """The history, in the order in which it was written, and what follows from it."""

    entries: tuple[Entry, ...] = field(default=())

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Ledger:
        return cls(tuple(sorted(entries, key=lambda entry: entry.at)))

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        asked = [e for e in self.entries if e.event is Event.REQUESTED and not is_snapshot_id(e.swapId)]
        return tuple(_request(number, entry) for number, entry in enumerate(asked, 1))

    @cached_property
    def snapshots(self) -> dict[int, Request]:
        """The command for each snapshot, by its generation. It has no number, because it never flips by itself."""
        asked = [e for e in self.entries if e.event is Event.REQUESTED and is_snapshot_id(e.swapId)]
        return {snapshot.generation: snapshot for snapshot in (_request(0, entry) for entry in asked)}

    def is_snapshot(self, generation: int | None) -> bool:
        """Whether a generation is a range of history: no driver ever streams it."""
        return generation in self.snapshots

    def is_finished(self, generation: int) -> bool:
        """Whether a snapshot is finished, so that it can be made active at any time."""
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
        """The request that is on its way to its flip. Only the newest can be."""
        newest = self.newest
        return newest if newest and self.is_open(newest) else None

    def find(self, swap_id: str) -> Request | None:
        return next((request for request in self.requests if request.swapId == swap_id), None)

    @cached_property
    def _requests_of(self) -> dict[int, list[Request]]:
        found: dict[int, list[Request]] = {}
        for request in self.requests:
            found.setdefault(request.generation, []).append(request)
        return found

    def requests_of(self, generation: int) -> list[Request]:
        return self._requests_of.get(generation, [])

    def request_of(self, generation: int) -> Request | None:
        """The newest request for a generation; a resumed one was asked for more than once."""
        asked = self.requests_of(generation)
        return asked[-1] if asked else None

    def command_of(self, generation: int) -> Request | None:
        """The newest command about a generation: a request, or the one for a snapshot."""
        return self.request_of(generation) or self.snapshots.get(generation)

    @cached_property
    def _lives(self) -> dict[int | None, Entry]:
        return {entry.generation: entry for entry in self.entries if entry.event in LIFE}

    def last_life(self, generation: int) -> Entry | None:
        return self._lives.get(generation)

    def was_active(self, generation: int) -> bool:
        return generation in self._flipped

    def is_retired(self, generation: int) -> bool:
        """Whether a generation has ended and nobody has asked for it since."""
        asked = self.request_of(generation)
        return self.has_ended(generation) and (asked is None or not self.is_open(asked))

    def has_ended(self, generation: int) -> bool:
        """Whether it has retired, even if it was asked for again since: that takes a new driver."""
        last = self.last_life(generation)
        return last is not None and last.event is Event.RETIRED

    def is_removed(self, generation: int) -> bool:
        return generation in self.removed

    @cached_property
    def removed(self) -> frozenset[int]:
        """Retired twice without being asked for in between: rows and checkpoint are gone, nobody can have them back."""
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
        last = self.last_life(generation)
        return last is not None and last.event is Event.LINGERING

    @cached_property
    def lingering(self) -> list[Entry]:
        """Lingering generations by the entry that says so, oldest first."""
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


def is_snapshot_id(swap_id: str) -> bool:
    return swap_id.startswith(BACKFILL_PREFIX)


def _request(number: int, entry: Entry) -> Request:
    if entry.generation is None or entry.target is None:
        raise ValueError(f"the request {entry.swapId} names no generation")
    return Request(
        number,
        entry.swapId,
        entry.generation,
        entry.target,
        entry.start or "latest",
        entry.requestedBy,
        entry.at,
        entry.deadline,
    )


def desired(ledger: Ledger, status_row: StatusRow) -> Target | None:
    """What was last asked for and has not failed."""
    return ledger.pending.target if ledger.pending else status_row.target


def desires_snapshot(ledger: Ledger, status_row: StatusRow) -> bool:
    """Whether what was last asked for is a snapshot of history, and not a stream."""
    return ledger.is_snapshot(ledger.pending.generation if ledger.pending else status_row.generation)


def pending_start(ledger: Ledger) -> str | None:
    """Where the swap that is under way starts; a resume is bound to its own target and not handed on."""
    return ledger.pending.start if ledger.pending and ledger.pending.start != "resume" else None


def previous_generation(ledger: Ledger, status_row: StatusRow) -> int | None:
    """The generation that was active before the active one."""
    before = [entry.generation for entry in ledger.flips if entry.generation != status_row.generation]
    return before[-1] if before else None


def find_resumable(ledger: Ledger, status_row: StatusRow, target: Target) -> int | None:
    """The newest stream with these topics and this join that was active once, is not now and was not removed."""
    candidates = [
        generation
        for generation in ledger.generations
        if generation != status_row.generation
        and not ledger.is_snapshot(generation)
        and not ledger.is_removed(generation)
        and ledger.was_active(generation)
        and ledger.requests_of(generation)[0].target == target
    ]
    return candidates[-1] if candidates else None


def may_flip(ledger: Ledger, status_row: StatusRow, swap_id: str, now: datetime, rules: Rules) -> bool:
    """Whether this request may flip now: it is the newest, proven, in time, and everything before it is settled."""
    request = ledger.pending
    if request is None or request.swapId != swap_id or request.generation == status_row.generation:
        return False
    if request.number <= status_row.barred or is_overdue(request, now):
        return False
    if any(ledger.is_open(earlier) for earlier in ledger.requests[:-1]):
        return False
    if ledger.is_snapshot(request.generation):
        if not ledger.is_finished(request.generation):
            return False
    elif ledger.has_ended(request.generation) and not ledger.has(swap_id, Event.STARTING):
        return False
    return ledger.has(swap_id, Event.READY) and (request.is_undo or not is_dwelling(ledger, now, rules))


def is_dwelling(ledger: Ledger, now: datetime, rules: Rules) -> bool:
    """Whether the last flip is so fresh that the next one has to wait; one far in the future was the clock."""
    return bool(ledger.flips) and abs(now - ledger.flips[-1].at) < rules.dwell


def is_overdue(request: Request, now: datetime) -> bool:
    return request.deadline is not None and now > request.deadline


def find_stuck(ledger: Ledger, status_row: StatusRow, now: datetime, rules: Rules, seen: SignOfLife) -> Request | None:
    """The request under way that nobody works for: its driver never started, or is not heard of any more.

    With nothing active there is nothing to fall back to. A request that is ready only waits for its turn, and a
    snapshot for the next round of the control DAG: both have their deadline. A driver gets the time that every start
    gets until its first report.
    """
    request = ledger.pending
    if request is None or status_row.generation is None or request.generation == status_row.generation:
        return None
    if ledger.has(request.swapId, Event.READY) or ledger.is_snapshot(request.generation):
        return None
    signs = [entry.at for entry in ledger.entries if entry.swapId == request.swapId]
    reported = seen(request.generation)
    has_begun = reported is not None and reported > request.at
    patience = rules.stuck if has_begun else max(rules.stuck, rules.ready_deadline)
    return request if now - max(filter(None, (*signs, reported))) > patience else None


def flip(status_row: StatusRow, request: Request, now: datetime) -> StatusRow:
    return replace(
        status_row,
        generation=request.generation,
        target=request.target,
        lastApplied=now,
        epoch=status_row.epoch + 1,
        flipped=request.number,
    )


def withdraw(status_row: StatusRow, number: int, reason: str = "") -> StatusRow | None:
    """Takes the right to flip from all requests up to a number; None when that one has flipped or has lost it."""
    if status_row.flipped == number or status_row.barred >= number:
        return None
    return replace(status_row, barred=number, barred_because=reason)


def number_to_withdraw(ledger: Ledger, status_row: StatusRow, now: datetime) -> int | None:
    """The newest request that has lost its right to flip without the status row knowing yet."""
    newest = ledger.newest
    late = [
        request.number
        for request in ledger.open_requests
        if request.number != status_row.flipped
        and request.number > status_row.barred
        and (request is not newest or is_overdue(request, now))
        and not _is_there_already(ledger, status_row, request)
    ]
    return max(late, default=None)


def _is_there_already(ledger: Ledger, status_row: StatusRow, request: Request) -> bool:
    """A request for what is active: it took back another one before that one's flip, and needs no flip itself."""
    return request is ledger.newest and request.generation == status_row.generation


def settlements(
    ledger: Ledger, status_row: StatusRow, now: datetime, reasons: Mapping[str, str] | None = None
) -> list[Entry]:
    """Outcomes that are decided and not written yet, and who lingers because of them. `reasons` tell why one failed."""
    found = []
    for request in ledger.open_requests:
        outcome = _outcome(ledger, status_row, request, now, (reasons or {}).get(request.swapId))
        if outcome is None:
            break
        found.append(outcome)
    return found + _newly_lingering(ledger, status_row)


def _outcome(
    ledger: Ledger, status_row: StatusRow, request: Request, now: datetime, reason: str | None
) -> Entry | None:
    if request.number == status_row.flipped:
        return request.entry(Event.APPLIED, f"generation {request.generation} is active")
    newest = ledger.newest
    if newest is not None and request is not newest:
        if request.number > status_row.barred:
            return None
        return request.entry(Event.SUPERSEDED, f"superseded by {newest.swapId} before its flip")
    if _is_there_already(ledger, status_row, request):
        return request.entry(Event.REFRESHED, f"generation {request.generation} is active and stays")
    if request.number > status_row.barred:
        return None
    reason = reason or (status_row.barred_because if status_row.barred == request.number else "")
    if not reason:
        late = f"not ready by its deadline, {_moment(request.deadline)}; send it again with a longer deadlineSeconds"
        reason = late if is_overdue(request, now) else "it was given up before its flip"
    return request.entry(Event.FAILED, reason)


def _moment(at: datetime | None) -> str:
    return at.isoformat(timespec="seconds") if at else "never"


def _newly_lingering(ledger: Ledger, status_row: StatusRow) -> list[Entry]:
    found = []
    for generation in ledger.generations:
        last = ledger.last_life(generation)
        if generation == status_row.generation or last is None or last.event is not Event.APPLIED:
            continue
        request = ledger.find(last.swapId)
        if request is not None:
            found.append(request.entry(Event.LINGERING, f"replaced by generation {status_row.generation}"))
    return found


def linger_end(ledger: Ledger, generation: int, rules: Rules) -> datetime | None:
    """When a lingering generation may retire; at once for those beyond the most that may linger.

    None for one that does not linger, and for one that is kept until a person retires it.
    """
    lingering = ledger.lingering
    mine = next((entry for entry in lingering if entry.generation == generation), None)
    if mine is None:
        return None
    if _is_kept(ledger, generation, rules):
        return None if rules.keep is None else mine.at + rules.keep
    is_too_many = mine not in lingering[max(0, len(lingering) - rules.max_lingering) :]
    return mine.at if is_too_many else mine.at + rules.linger


def _is_kept(ledger: Ledger, generation: int, rules: Rules) -> bool:
    """A snapshot has no driver that could be kept running."""
    return rules.is_keeping and ledger.is_lingering(generation) and not ledger.is_snapshot(generation)


def _retires_at(ledger: Ledger, generation: int, rules: Rules, seen: SignOfLife) -> datetime | None:
    """The end of its time. A kept generation ends sooner if its driver stays silent although its task restarts it:
    nobody could take it back at once, and a rollback resumes its checkpoint."""
    end, life = linger_end(ledger, generation, rules), ledger.last_life(generation)
    if life is None or not _is_kept(ledger, generation, rules):
        return end
    heard_at = max(filter(None, (life.at, seen(generation))))
    return min(filter(None, (end, heard_at + rules.stuck + rules.ready_deadline)))


def may_retire(ledger: Ledger, status_row: StatusRow, generation: int) -> bool:
    """Nobody wants it: it was replaced, and no open request asks for it back."""
    asked = ledger.request_of(generation)
    return (
        ledger.is_lingering(generation)
        and generation != status_row.generation
        and not (asked and ledger.is_open(asked))
    )


def should_retire(
    ledger: Ledger, status_row: StatusRow, generation: int, now: datetime, rules: Rules, seen: SignOfLife
) -> bool:
    """Its time is over and its successor was seen at work since: retiring is the point of no return.

    A snapshot has nobody who works, and nobody who could die.
    """
    end = _retires_at(ledger, generation, rules, seen)
    if end is None or now < end or not may_retire(ledger, status_row, generation):
        return False
    if generation != previous_generation(ledger, status_row) or status_row.generation is None:
        return True
    if ledger.is_snapshot(status_row.generation):
        return True
    alive_at = seen(status_row.generation)
    return alive_at is not None and alive_at >= end


def silent_lingerers(ledger: Ledger, status_row: StatusRow, now: datetime, rules: Rules, seen: SignOfLife) -> list[int]:
    """Lingering generations whose driver should have retired by itself and is not heard of; a snapshot has none."""
    found = []
    for entry in ledger.lingering:
        generation = entry.generation
        if generation is None or not should_retire(ledger, status_row, generation, now, rules, seen):
            continue
        last = max(filter(None, (seen(generation), _retires_at(ledger, generation, rules, seen))))
        if ledger.is_snapshot(generation) or now - last > rules.silence:
            found.append(generation)
    return found


def should_undo(
    ledger: Ledger,
    status_row: StatusRow,
    generation: int,
    now: datetime,
    watched_since: datetime,
    rules: Rules,
    seen: SignOfLife,
) -> bool:
    """Whether a lingering generation takes the flip back: its successor was silent for the whole probation time.

    A kept generation watches no longer than it would linger: once its successor has worked for that time it has proven
    itself, and what happens to it later is no reason to undo what was asked for.
    """
    if status_row.generation is None or ledger.open_requests or generation != previous_generation(ledger, status_row):
        return False
    if ledger.is_snapshot(status_row.generation):
        return False
    last = ledger.last_life(generation)
    if last is None or last.event is not Event.LINGERING:
        return False
    alive_at = seen(status_row.generation)
    if rules.is_keeping and alive_at is not None and alive_at >= last.at + rules.linger:
        return False
    signs = [last.at, watched_since, alive_at]
    return now - max(filter(None, signs)) >= rules.probation


def is_on_probation(ledger: Ledger, now: datetime, rules: Rules) -> bool:
    """Whether a lingering generation waits for signs of life of the active one; a kept one does so only at first."""
    return any(not rules.is_keeping or now < entry.at + rules.probation for entry in ledger.lingering)


def explain_refusal(ledger: Ledger, status_row: StatusRow, generation: int) -> str | None:
    """Why a person cannot retire a generation; None if it can be retired."""
    name, asked = f"generation {generation}", ledger.command_of(generation)
    if asked is None:
        return f"there is no {name}: `switchyard status` shows those that linger"
    if generation == status_row.generation:
        return f"{name} is active: swap or roll back first, then retire it"
    if ledger.is_open(asked):
        return f"{name} is being built or taken back by {asked.swapId}: wait for its outcome"
    if not may_retire(ledger, status_row, generation):
        return f"{name} has retired already, or was never active: none of its drivers runs"
    return None


def is_abandoned(ledger: Ledger, generation: int) -> bool:
    """A generation that ended before it was active, or a resume that failed, and that is not closed yet."""
    asked, last = ledger.command_of(generation), ledger.last_life(generation)
    if asked is None or ledger.is_open(asked):
        return False
    if last is None:
        return True
    is_reopened = last.event is Event.RETIRED and asked.at > last.at
    return is_reopened and ledger.outcomes[asked.swapId].event in (Event.FAILED, Event.SUPERSEDED)


def is_over(ledger: Ledger, generation: int) -> bool:
    """Whether a generation has ended for good: retired, or given up before it was active."""
    return ledger.is_retired(generation) or is_abandoned(ledger, generation)


def may_remove(ledger: Ledger, status_row: StatusRow, generation: int, now: datetime, keep: timedelta) -> bool:
    """Whether a generation has been retired for its keep time, and is neither the way back nor asked for again."""
    last = ledger.last_life(generation)
    return (
        last is not None
        and last.at <= now - keep
        and (ledger.was_active(generation) or ledger.is_finished(generation))
        and ledger.is_retired(generation)
        and not is_abandoned(ledger, generation)
        and not ledger.is_removed(generation)
        and generation not in (status_row.generation, previous_generation(ledger, status_row))
    )


def must_stop(ledger: Ledger, started_for: Request) -> bool:
    """Whether a driver has nothing to do any more; also when its generation ended and was asked for again since."""
    generation = started_for.generation
    ends = [e.at for e in ledger.entries if e.event is Event.RETIRED and e.generation == generation]
    return is_over(ledger, generation) or any(end > started_for.at for end in ends)


def needs_run(ledger: Ledger) -> Request | None:
    """The request that must be given a driver: it has none, and no lingering driver to be asked back."""
    request = ledger.pending
    if request is None or request.is_hosted or ledger.has(request.swapId, Event.STARTING):
        return None
    if ledger.is_snapshot(request.generation):
        return None
    last = ledger.last_life(request.generation)
    is_alive = last is not None and last.event in (Event.APPLIED, Event.LINGERING)
    return None if is_alive else request


def snapshot_to_flip(ledger: Ledger) -> Request | None:
    """The request for a finished snapshot that is under way: it has no driver, so whoever looks flips it."""
    request = ledger.pending
    return request if request is not None and ledger.is_finished(request.generation) else None


def first_swap_id(swap_id: str) -> str:
    """The id that was asked for first: `boot~3` is the third try of `boot`."""
    return re.sub(r"~\d+$", "", swap_id)


def next_swap_id(ledger: Ledger, swap_id: str) -> str:
    """The id itself, or the next free one when what it names has ended without being applied."""
    ended = {known for known, outcome in ledger.outcomes.items() if outcome.event is not Event.APPLIED}
    candidates = [swap_id, *(f"{swap_id}~{number}" for number in range(2, len(ended) + 3))]
    return next(candidate for candidate in candidates if candidate not in ended)


def run_id_of(ledger: Ledger, request: Request) -> str:
    """The Airflow run of a request, derived from its generation: asking twice starts one."""
    if request.is_hosted:
        return request.swapId.removeprefix(HOSTED_PREFIX)
    nth = ledger.requests_of(request.generation).index(request) + 1
    return f"generation-{request.generation}" + (f".{nth}" if nth > 1 else "")
