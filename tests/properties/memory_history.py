"""A history in memory that can be interrupted at every read and commit: by others at work, or by a crash."""

from __future__ import annotations

from collections.abc import Callable
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
    """Implements `transitions.SwapHistory`. `pause` is called where others can act; watchers see every commit."""

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
        self._reads: list[Ledger | None] = [None]
        self.kept = Ledger()
        self.row = StatusRow()

    def ledger(self) -> Ledger:
        self._pause(Point.READ)
        return self.show(self.kept)

    def show(self, kept: Ledger) -> Ledger:
        self._reads[-1] = kept
        return kept

    def status_row(self) -> StatusRow:
        self._pause(Point.READ)
        return self.row

    def append(self, decide: Callable[[Ledger], list[Entry]]) -> list[Entry]:
        while True:
            before = self.kept
            written = self._stamp(before, decide(before))
            if not written:
                return []
            self._pause(Point.BEFORE)
            if self.kept is before:
                break
        self.kept = Ledger((*before.entries, *written))
        self._watch_entries(before, written)
        self._pause(Point.AFTER)
        return written

    def change(self, decide: Callable[[StatusRow], StatusRow | None]) -> StatusRow | None:
        while True:
            before = self.row
            self._reads.append(None)
            try:
                after = decide(before)
            finally:
                read = self._reads.pop()
            if after is None:
                return None
            self._pause(Point.BEFORE)
            if self.row is before:
                break
        # A copy, so that writing an equal row is a new version too.
        self.row = replace(after)
        self._watch_row(RowChange(before, self.row, read))
        self._pause(Point.AFTER)
        return self.row

    def _stamp(self, before: Ledger, entries: list[Entry]) -> list[Entry]:
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

    def append(self, decide: Callable[[Ledger], list[Entry]]) -> list[Entry]:
        return self.history.append(decide)

    def change(self, decide: Callable[[StatusRow], StatusRow | None]) -> StatusRow | None:
        return self.history.change(decide)
