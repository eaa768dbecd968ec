"""Store swap_history and the status row in Delta; change each only by compare-and-set on its version."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable

from switchyard.layout import Layout
from switchyard.policies import Target
from switchyard.swap.history import Entry, Event, Ledger, StatusRow
from switchyard.tables import store
from switchyard.tables.folders import Folder
from switchyard.tables.status import ACTIVE
from switchyard.wording import mask_emails

FLIPPED, BARRED = "switchyard.flipped", "switchyard.barred"
"""Delta transaction markers of the status table; `flip_rules` says what they mean."""
BARRED_BECAUSE = "switchyard.barredBecause"
"""The reason of a withdrawal, in the metadata of its commit. The outcome follows within a few commits."""
COMMITS_BACK = 10

TICK = timedelta(microseconds=1)
Clock = Callable[[], datetime]


class HistoryStore:
    """Keeps both tables open: reading again is cheap while nothing has changed."""

    def __init__(
        self,
        layout: Layout,
        clock: Clock = lambda: datetime.now(UTC),
        on_written: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        self.layout = layout
        self._clock = clock
        self._on_written = on_written
        self._history = store.open_table(layout, "swap_history")
        store.add_new_columns(self._history, "swap_history")
        self._status = store.open_table(layout, "status")
        self._entries: dict[str, list[Entry]] = {}
        self._ledger: tuple[int, Ledger] = (-1, Ledger())
        self._status_row: tuple[int, StatusRow] = (-1, StatusRow())

    def ledger(self) -> Ledger:
        self._history.update_incremental()
        version = int(self._history.version())
        if self._ledger[0] != version:
            paths = store.list_paths(self._history)
            folder = Folder.at(self._history.table_uri).as_filesystem()
            # Entries are only ever added, so each file is read once.
            for path in [path for path in paths if path not in self._entries]:
                self._entries[path] = [entry_of(row) for row in store.read_file(folder, path, "swap_history")]
            self._ledger = (version, Ledger.of(entry for path in paths for entry in self._entries[path]))
        return self._ledger[1]

    def status_row(self) -> StatusRow:
        self._status.update_incremental()
        version = int(self._status.version())
        if self._status_row[0] != version:
            self._status_row = (version, status_row_of(self._status))
        return self._status_row[1]

    def commit_next(self, ledger: Ledger, entries: Sequence[Entry]) -> bool:
        """Write entries as the version after that of `ledger`; return False if another writer took it."""
        # The open table may be newer than what the caller has read: then its decision is out of date.
        if self._ledger[1] is not ledger or self._ledger[0] != self._history.version():
            return False
        written = stamp(entries, ledger, self._clock())
        change = store.Change(rows=[row_of(entry) for entry in written])
        if not store.commit_next(self._history, "swap_history", change):
            return False
        for entry in written:
            self._on_written(entry)
        return True

    def commit_row(self, before: StatusRow, after: StatusRow) -> bool:
        """Replace the status row; return False if it has changed since `before` was read."""
        is_newest = self._status_row[1] is before and self._status_row[0] == self._status.version()
        return is_newest and store.commit_next(self._status, "status", change_of(before, after))


def stamp(entries: Sequence[Entry], ledger: Ledger, now: datetime) -> list[Entry]:
    """Give entries increasing times, also if the clocks of two machines differ: readers sort by them."""
    last = ledger.entries[-1].at if ledger.entries else now - TICK
    first = max(now, last + TICK)
    return [replace(entry, at=first + number * TICK) for number, entry in enumerate(entries)]


def row_of(entry: Entry) -> store.Row:
    row = asdict(entry) | {"detail": mask_emails(entry.detail)}
    target = row.pop("target") or {}
    return row | {name: target.get(name) for name in ("usersTopic", "accountsTopic", "joinType")}


def entry_of(row: store.Row) -> Entry:
    fields = dict(row)
    topics = [fields.pop(name, None) for name in ("usersTopic", "accountsTopic", "joinType")]
    fields["event"] = Event(fields["event"])
    return Entry(**fields, target=Target(*topics) if all(topics) else None)


def status_row_of(table: DeltaTable) -> StatusRow:
    rows = store.read_snapshot(table, "status").to_pylist()
    flipped, barred = (table.transaction_version(marker) or 0 for marker in (FLIPPED, BARRED))
    reason = _find_reason(table, barred) if barred > flipped else ""
    if not rows:
        return StatusRow(flipped=flipped, barred=barred, barred_because=reason)
    row = rows[0]
    target = Target(row["usersTopic"], row["accountsTopic"], row["joinType"])
    return StatusRow(row["generation"], target, row["lastApplied"], row["epoch"], flipped, barred, reason)


def _find_reason(table: DeltaTable, barred: int) -> str:
    """Return why the request of this number was given up; empty if it was withdrawn for another reason."""
    told = (commit.get(BARRED_BECAUSE) for commit in table.history(COMMITS_BACK))
    known = {reason["number"]: reason["reason"] for reason in map(json.loads, filter(None, told))}
    return str(known.get(barred, ""))


def change_of(before: StatusRow, after: StatusRow) -> store.Change:
    pairs = ((FLIPPED, before.flipped, after.flipped), (BARRED, before.barred, after.barred))
    markers = {name: new for name, old, new in pairs if new != old}
    # A withdrawal is a marker alone: the row and its file stay.
    if replace(after, flipped=0, barred=0) == replace(before, flipped=0, barred=0):
        reason = json.dumps({"number": after.barred, "reason": mask_emails(after.barred_because)})
        return store.Change(markers=markers, metadata={BARRED_BECAUSE: reason} if after.barred_because else {})
    if after.target is None:
        raise ValueError("a status row names what is joined")
    row = {name: getattr(after, name) for name in ("generation", "lastApplied", "epoch")}
    return store.Change(rows=[row | asdict(after.target) | {"state": ACTIVE}], mode="overwrite", markers=markers)
