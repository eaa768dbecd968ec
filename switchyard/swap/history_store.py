"""The swap history store: swap_history and the status row, each changed only by compare-and-set on its version."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
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
    """Keeps both tables open, so that reading again costs little while nothing has changed."""

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
        return self._ledger_at(self._history)

    def status_row(self) -> StatusRow:
        self._status.update_incremental()
        return self._status_row_at(self._status)

    def commit_next(self, ledger: Ledger, entries: Sequence[Entry]) -> bool:
        """Write entries as the version after the one that `ledger` was read at; False if another writer took it.

        A loser reads and decides again, as often as it takes: each lost race is a commit of somebody else.
        """
        # The table as it is open here may be newer than what the caller has read: then its decision is out of date.
        if self._ledger[1] is not ledger or self._ledger[0] != self._history.version():
            return False
        written = stamp(entries, ledger, self._clock())
        if not store.commit_next(
            self._history, "swap_history", store.Change(rows=[row_of(entry) for entry in written])
        ):
            return False
        for entry in written:
            self._on_written(entry)
        return True

    def commit_row(self, before: StatusRow, after: StatusRow) -> bool:
        """Replace the status row; False if it has changed since `before` was read."""
        is_newest = self._status_row[1] is before and self._status_row[0] == self._status.version()
        return is_newest and store.commit_next(self._status, "status", change_of(before, after))

    def _status_row_at(self, table: DeltaTable) -> StatusRow:
        version = int(table.version())
        if self._status_row[0] != version:
            self._status_row = (version, status_row_of(table))
        return self._status_row[1]

    def _ledger_at(self, table: DeltaTable) -> Ledger:
        """The history at a version. Every file is read once: entries are only ever added."""
        version = int(table.version())
        if self._ledger[0] != version:
            paths = pa.table(table.get_add_actions())["path"].to_pylist()
            fresh = [path for path in paths if path not in self._entries]
            if fresh:
                self._entries |= read_entries(table, fresh)
            entries = [entry for path in paths for entry in self._entries[path]]
            self._ledger = (version, Ledger.of(entries))
        return self._ledger[1]


def read_entries(table: DeltaTable, paths: list[str]) -> dict[str, list[Entry]]:
    folder = Folder.at(table.table_uri).as_filesystem()
    return {path: [entry_of(row) for row in store.read_file(folder, path, "swap_history")] for path in paths}


def stamp(entries: Sequence[Entry], ledger: Ledger, now: datetime) -> list[Entry]:
    """Give entries times that increase, also when the clocks of two machines disagree: the order is read from them."""
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
    without_row = StatusRow(
        flipped=flipped, barred=barred, barred_because=_find_reason(table, barred) if barred > flipped else ""
    )
    if not rows:
        return without_row
    row = rows[0]
    target = Target(row["usersTopic"], row["accountsTopic"], row["joinType"])
    return replace(
        without_row, generation=row["generation"], target=target, lastApplied=row["lastApplied"], epoch=row["epoch"]
    )


def _find_reason(table: DeltaTable, barred: int) -> str:
    """Why the request of this number was given up; empty if it was withdrawn for another reason."""
    told = (commit.get(BARRED_BECAUSE) for commit in table.history(COMMITS_BACK))
    known = {reason["number"]: reason["reason"] for reason in map(json.loads, filter(None, told))}
    return str(known.get(barred, ""))


def change_of(before: StatusRow, after: StatusRow) -> store.Change:
    """The commit from one row to the next. A withdrawal is a marker alone: the row and its file stay."""
    markers = {}
    if after.flipped != before.flipped:
        markers[FLIPPED] = after.flipped
    if after.barred != before.barred:
        markers[BARRED] = after.barred
    if replace(after, flipped=0, barred=0) == replace(before, flipped=0, barred=0):
        reason = json.dumps({"number": after.barred, "reason": mask_emails(after.barred_because)})
        return store.Change(markers=markers, metadata={BARRED_BECAUSE: reason} if after.barred_because else {})
    return store.Change(rows=[to_status_row(after, ACTIVE)], mode="overwrite", markers=markers)


def to_status_row(status_row: StatusRow, state: str) -> store.Row:
    target = status_row.target
    if target is None:
        raise ValueError("a status row names what is joined")
    return {
        "generation": status_row.generation,
        "usersTopic": target.usersTopic,
        "accountsTopic": target.accountsTopic,
        "joinType": target.joinType,
        "lastApplied": status_row.lastApplied,
        "state": state,
        "epoch": status_row.epoch,
    }
