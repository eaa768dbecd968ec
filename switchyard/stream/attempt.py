"""One attempt of a generation: the request that it serves, its number, and the exit codes it may end with."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from switchyard.errors import FencedError
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.swap import retirement_rules, transitions
from switchyard.swap.history import BY_HAND_PREFIX, Event, Request
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.planning import allow_seconds, count_to_read
from switchyard.tables.logs import LogLevel, write_log
from switchyard.tables.writer import claim_attempt


class End(enum.Enum):
    RETIRED = 0
    FENCED = 75
    STOPPED = 143


@dataclass(frozen=True)
class Attempt:
    """What does not change while a driver process runs. All that changes is in the history."""

    settings: Settings
    history: HistoryStore
    spec: GenerationSpec
    request: Request
    number: int

    @property
    def layout(self) -> Layout:
        return self.settings.layout

    @property
    def generation(self) -> int:
        return self.spec.generation

    def must_stop(self) -> bool:
        return retirement_rules.must_stop(self.history.ledger(), self.request)

    def log(self, msg: str, level: LogLevel = "INFO") -> None:
        """Write a line into `logs`, under the newest request of the generation."""
        request = self.history.ledger().request_of(self.generation)
        swap_id = request.swapId if request else None
        write_log(self.layout, msg, level=level, generation=self.generation, swap_id=swap_id)


def find_request(settings: Settings, history: HistoryStore, spec: GenerationSpec) -> Request:
    """Return the request of a generation; write one for a job that was started by hand, so that it has a history."""
    known = history.ledger().request_of(spec.generation)
    if known is not None:
        return known
    records = count_to_read(spec.startOffsets, spec.readyOffsets)
    seconds = allow_seconds(settings, history.ledger(), records, spec.target)
    deadline = datetime.now(UTC) + timedelta(seconds=seconds)
    why, swap_id = "the job was started by hand", f"{BY_HAND_PREFIX}{spec.generation}"
    return transitions.ask_once(history, swap_id, "hand", spec.generation, spec.target, spec.start, why, deadline)


def claim(settings: Settings, history: HistoryStore, spec: GenerationSpec, request: Request) -> Attempt:
    """Take the next attempt number, which fences older attempts out, and write STARTING."""
    attempt = Attempt(settings, history, spec, request, claim_attempt(settings.layout, spec.generation))
    if attempt.must_stop():
        raise FencedError(f"generation {spec.generation} ended while attempt {attempt.number} was starting")
    if not transitions.note(history, request.entry(Event.STARTING, f"attempt {attempt.number}")):
        attempt.log(f"the driver of generation {spec.generation} is starting again: attempt {attempt.number}")
    return attempt
