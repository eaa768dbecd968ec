"""swap_history: what was asked, what became of it. Append-only; numbers and outcomes are given exactly once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum

from deltalake import DeltaTable

from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.tables import store


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


@dataclass(frozen=True)
class Swap:
    """The columns that every event of one swap shares."""

    swapId: str
    generation: int | None
    usersTopic: str | None
    accountsTopic: str | None
    joinType: str | None
    start: str | None
    requestedBy: str


def read_history(layout: Layout) -> list[store.Row]:
    """Every event, newest last."""
    return sorted(store.read_rows(layout, "swap_history"), key=lambda row: row["at"])


def find_swap(rows: Iterable[store.Row], generation: int) -> Swap | None:
    """The newest swap that asked for a generation (a resumed one was asked for more than once)."""
    asked = [row for row in rows if row["generation"] == generation and row["event"] == Event.REQUESTED]
    return swap_of(asked[-1]) if asked else None


def swap_of(row: store.Row) -> Swap:
    return Swap(**{name: row[name] for name in Swap.__dataclass_fields__})


def has_event(rows: Iterable[store.Row], swap: Swap, event: Event) -> bool:
    return any(row["swapId"] == swap.swapId and row["event"] == event for row in rows)


def open_swap_id(rows: list[store.Row], swap_id: str) -> str:
    """The id itself, or the next free one when what it names has ended without being applied."""
    ended = {row["swapId"] for row in rows if row["event"] in SETTLING - {Event.APPLIED}}
    candidates = [swap_id, *(f"{swap_id}~{number}" for number in range(2, len(ended) + 3))]
    return next(candidate for candidate in candidates if candidate not in ended)


def first_swap_id(swap_id: str) -> str:
    """The id that was asked for first: `run~3` is the third try of `run`."""
    return re.sub(r"~\d+$", "", swap_id)


def is_retired(rows: Iterable[store.Row], generation: int) -> bool:
    """Whether the last that was heard of a generation is its end."""
    events = [row["event"] for row in rows if row["generation"] == generation]
    ends = [event for event in events if event in (Event.REQUESTED, Event.RETIRED)]
    return bool(ends) and ends[-1] == Event.RETIRED


def is_asked_later(rows: list[store.Row], generation: int, than: int) -> bool:
    """Whether the newest request for one generation came after the newest for another."""
    asked = [row["generation"] for row in rows if row["event"] == Event.REQUESTED]
    return generation in asked and (than not in asked or asked[::-1].index(generation) < asked[::-1].index(than))


def allocate_generation(layout: Layout, swap: Swap, detail: str, resumed: int | None = None) -> int:
    """Writes REQUESTED under the next free number (or the resumed one); the same swap again keeps its number."""
    given = 0

    def decide(table: DeltaTable) -> store.Change | None:
        nonlocal given
        rows = store.read_snapshot(table, "swap_history").to_pylist()
        asked = [row for row in rows if row["swapId"] == swap.swapId and row["event"] == Event.REQUESTED]
        if asked:
            given = int(asked[0]["generation"])
            return None
        if resumed is not None and not is_retired(sorted(rows, key=lambda row: row["at"]), resumed):
            raise InputError(f"generation {resumed} was resumed by another request a moment ago")
        used = [int(row["generation"]) for row in rows if row["generation"] is not None]
        given = resumed or 1 + max(used, default=0)
        return store.Change(rows=[_event_row(swap, Event.REQUESTED, detail, generation=given)])

    store.transact(layout, "swap_history", decide)
    return given


def record(layout: Layout, swap: Swap, event: Event, detail: str = "") -> bool:
    """Writes an event of a swap once; False when it, or for an outcome any outcome, is there already."""
    same = SETTLING if event in SETTLING else {event}

    def decide(table: DeltaTable) -> store.Change | None:
        rows = store.read_snapshot(table, "swap_history").to_pylist()
        if any(row["swapId"] == swap.swapId and row["event"] in same for row in rows):
            return None
        return store.Change(rows=[_event_row(swap, event, detail)])

    return store.transact(layout, "swap_history", decide) is not None


def _event_row(swap: Swap, event: Event, detail: str, generation: int | None = None) -> store.Row:
    row = asdict(swap) | {"event": str(event), "at": datetime.now(UTC), "detail": detail}
    return row | ({} if generation is None else {"generation": generation})
