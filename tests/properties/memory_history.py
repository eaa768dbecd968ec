"""A history in memory that can be interrupted at every read and commit: by others at work, or by a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from switchyard.swap.history import Entry, Ledger, StatusRow

TICK = timedelta(microseconds=1)


class Crash(Exception):
    """The actor ended at this line, and nothing after it ran."""


class Point(StrEnum):
    READ = "before a read"
    BEFORE = "before a commit"
    AFTER = "after a commit"


@dataclass(frozen=True)
class RowChange:
    """One commit of the status row, and the history that its decision was based on."""

    before: StatusRow
    after: StatusRow
    read: Ledger | None


class MemoryHistory:
    """Implements `history.SwapHistory`. `pause` is called where others can act; watchers see every commit."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        pause: Callable[[Point], None] = lambda point: None,
        watch_entries: Callable[[Ledger, list[Entry]], None] = lambda before, written: None,
        watch_row: Callable[[RowChange], None] = lambda change: None,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._watch_entries = watch_entries
        self._watch_row = watch_row
        self._read: Ledger | None = None
        self.kept = Ledger()
        self.row = StatusRow()

    def pause(self, point: Point) -> None:
        """Others act here; what they read is not what this actor has read."""
        read = self._read
        self._pause(point)
        self._read = read

    def ledger(self) -> Ledger:
        self.pause(Point.READ)
        return self.show(self.kept)

    def show(self, kept: Ledger) -> Ledger:
        self._read = kept
        return kept

    def status_row(self) -> StatusRow:
        self.pause(Point.READ)
        self._read = None
        return self.row

    def commit_next(self, ledger: Ledger, entries: Sequence[Entry]) -> bool:
        self.pause(Point.BEFORE)
        if self.kept is not ledger:
            return False
        written = self._stamp(ledger, entries)
        self.kept = Ledger((*ledger.entries, *written))
        self._watch_entries(ledger, written)
        self.pause(Point.AFTER)
        return True

    def commit_row(self, before: StatusRow, after: StatusRow) -> bool:
        read = self._read
        self.pause(Point.BEFORE)
        if self.row is not before:
            return False
        # A copy, so that writing an equal row is a new version too.
        self.row = replace(after)
        self._watch_row(RowChange(before, self.row, read))
        self.pause(Point.AFTER)
        return True

    def _stamp(self, before: Ledger, entries: Sequence[Entry]) -> list[Entry]:
        first = self._clock()
        if before.entries:
            first = max(first, before.entries[-1].at + TICK)
        return [replace(entry, at=first + number * TICK) for number, entry in enumerate(entries)]


@dataclass(frozen=True)
class EarlyReader:
    """The history in the hands of an actor that read the history before others added to it."""

    history: MemoryHistory
    kept: Ledger

    def ledger(self) -> Ledger:
        return self.history.show(self.kept)

    def status_row(self) -> StatusRow:
        return self.history.status_row()

    def commit_next(self, ledger: Ledger, entries: Sequence[Entry]) -> bool:
        return self.history.commit_next(ledger, entries)

    def commit_row(self, before: StatusRow, after: StatusRow) -> bool:
        return self.history.commit_row(before, after)
