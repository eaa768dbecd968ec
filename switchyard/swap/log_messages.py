"""Log every entry of the swap history as one line of plain words in `logs`."""

from __future__ import annotations

from switchyard.layout import Layout
from switchyard.swap.history import FINISHED, Entry, Event, is_snapshot_id
from switchyard.swap.history_store import HistoryStore
from switchyard.tables.logs import LogLevel, write_log

_LEVELS: dict[Event, LogLevel] = {Event.REJECTED: "WARNING", Event.FAILED: "ERROR"}

_SNAPSHOTS = {
    Event.REQUESTED: "backfilling {name}: {entry.target}, from {entry.start}",
    Event.STARTING: "the backfill of {name} is starting",
    FINISHED: "{name} is built and can be published",
    Event.RETIRED: "{name} is closed",
}


def open_history(layout: Layout) -> HistoryStore:
    """Open the history; each entry that is written is also logged."""

    def log_entry(entry: Entry) -> None:
        level = _LEVELS.get(entry.event, "INFO")
        write_log(layout, describe(entry), level=level, generation=entry.generation, swap_id=entry.swapId)

    return HistoryStore(layout, on_written=log_entry)


def describe(entry: Entry) -> str:
    name = f"generation {entry.generation}"
    if is_snapshot_id(entry.swapId) and entry.event in _SNAPSHOTS:
        return f"{_SNAPSHOTS[entry.event].format(name=name, entry=entry)}: {entry.detail}"
    sentences = {
        Event.REQUESTED: f"building {name}: {entry.target}, from {entry.start}",
        Event.STARTING: f"the driver of {name} is starting",
        Event.READY: f"{name} is ready",
        Event.APPLIED: f"flipped: {name} is active",
        Event.REFRESHED: "unchanged: refreshed, nothing restarts",
        Event.REJECTED: "rejected",
        Event.SUPERSEDED: f"{name} is not built any further",
        Event.FAILED: f"{name} failed" if entry.generation else "failed",
        Event.PLANNED: "planned, nothing is changed",
        Event.LINGERING: f"{name} lingers",
        Event.RETIRED: f"{name} has retired",
    }
    sentence = sentences[entry.event]
    return f"{sentence}: {entry.detail}" if entry.detail and entry.event is not Event.APPLIED else sentence
