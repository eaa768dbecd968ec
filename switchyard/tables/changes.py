"""Read what has changed since a position, from the Delta logs.

A position is the versions of the tables. A client that reconnects with its last position, even to another process, goes
on exactly there. If the log no longer reaches back so far, the client is told to start over.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.records import PLACE, PLACES
from switchyard.tables.commits import Commit, FollowedTable, has_commit, read_commit
from switchyard.tables.live import LiveTables, Moment, scan_new_rows
from switchyard.tables.long_text import cut_rows
from switchyard.tables.stable_names import ACTIVE_NAMES
from switchyard.tables.store import Row

SMALL = {
    "statusRow": "status",
    "history": "swap_history",
    "logs": "logs",
    "control": "control_raw",
    "progress": "progress",
}
"""Kinds of events and the table whose new rows they bring."""
MOST_ROWS = 1_000
MOST_VERSIONS = 500
KEPT_ROWS = 20_000
"""Rows of commits that stay in memory for other readers of the stream."""
_Key = tuple[str, int, int | None]
"""Table, version, and for a big table the generation whose rows were read"""
_POSITION = re.compile(r"[a-z_]+=-?\d{1,18}(,[a-z_]+=-?\d{1,18}){0,20}")


@dataclass(frozen=True)
class ChangeEvent:
    kind: str
    data: dict[str, Any]


Position = Mapping[str, int]
"""Table → version; `generation` is the one whose rows the versions of the big tables mean."""


def parse_position(text: str) -> dict[str, int]:
    if not _POSITION.fullmatch(text):
        raise InputError("the position is not one that this stream has given; leave it out to start now")
    pairs = (part.split("=") for part in text.split(","))
    return {name: int(version) for name, version in pairs}


def format_position(position: Position) -> str:
    return ",".join(f"{name}={version}" for name, version in sorted(position.items()))


class Changes:
    """Shared by all streams of a process: a commit is read once, however many look."""

    def __init__(self, layout: Layout, live: LiveTables) -> None:
        self._live = live
        self._lock = threading.Lock()
        self._tables = {name: FollowedTable(layout, name) for name in (*SMALL.values(), *ACTIVE_NAMES.values())}
        self._commits: OrderedDict[_Key, tuple[Commit, list[Row]]] = OrderedDict()
        self._kept_rows = 0

    def now(self) -> dict[str, int]:
        position = {}
        with self._lock:
            for table in SMALL.values():
                self._tables[table].advance()
                position[table] = self._tables[table].version
        return position | _big_position(self._live.moment())

    def after(self, position: Position, names: Iterable[str] = ()) -> tuple[list[ChangeEvent], dict[str, int]]:
        """Return the events since a position, and the position after them. `names` are the tables of wanted rows."""
        reached = dict(position)
        events: list[ChangeEvent] = []
        for kind, table in SMALL.items():
            rows = self._advance_small(table, reached)
            if rows is None:
                return [ChangeEvent("reset", {})], self.now()
            if rows:
                events.append(ChangeEvent(kind, {"rows": rows}))
        moment = self._live.moment()
        goal = _big_position(moment)
        if goal != {name: reached.get(name) for name in goal}:
            is_flip = goal.get("generation") != reached.get("generation")
            events += [] if is_flip else self._advance_big(reached, goal, names)
            versions = moment.progress.versions() if moment.progress else {}
            events.append(ChangeEvent("tables", {"generation": goal.get("generation"), "versions": versions}))
            reached |= goal
        return events, reached

    def _advance_small(self, table: str, reached: dict[str, int]) -> list[Row] | None:
        """Return new rows of a small table, at most MOST_ROWS or a few more; None when the log no longer has them."""
        rows: list[Row] = []
        followed = self._tables[table]
        while len(rows) < MOST_ROWS and (commit := self._read(followed, reached.get(table, -1) + 1)) is not None:
            reached[table] = commit[0].version
            rows += commit[1]
        is_lost = reached.get(table, -1) >= 0 and not has_commit(followed.folder, reached[table])
        return None if is_lost else rows

    def _advance_big(self, reached: Position, goal: Position, names: Iterable[str]) -> list[ChangeEvent]:
        events = []
        for name in names:
            table, generation = ACTIVE_NAMES[name], goal["generation"]
            first, last = reached.get(table, goal[table]) + 1, goal[table]
            rows, more = self._new_rows(table, generation, range(first, min(last, first + MOST_VERSIONS) + 1))
            if rows or more or last - first >= MOST_VERSIONS:
                document = {"name": name, "generation": generation, "version": last, "rows": rows, "more": more}
                events.append(ChangeEvent("rows", document))
        return events

    def _new_rows(self, table: str, generation: int, versions: range) -> tuple[list[Row], int]:
        """Return the rows of the new files and 0, or of more than MOST_ROWS none and their number."""
        followed = self._tables[table]
        found = [read_commit(followed.folder, version) for version in versions]
        # A commit of another generation, such as one that reads its history, may hold any number of rows.
        commits = [commit.only(generation) for commit in found if commit is not None]
        count = sum(MOST_ROWS + 1 if file.rows is None else file.rows for commit in commits for file in commit.added)
        if count > MOST_ROWS:
            return [], count
        key = PLACES if table == "joined" else PLACE
        kept = [self._keep(followed, commit, generation)[1] for commit in commits if commit.added]
        return list({tuple(row[name] for name in key): row for rows in kept for row in rows}.values()), 0

    def _read(self, followed: FollowedTable, version: int) -> tuple[Commit, list[Row]] | None:
        if (known := self._find((followed.name, version, None))) is not None:
            return known
        commit = read_commit(followed.folder, version)
        return None if commit is None else self._keep(followed, commit)

    def _find(self, key: _Key) -> tuple[Commit, list[Row]] | None:
        with self._lock:
            return self._commits.get(key)

    def _keep(self, followed: FollowedTable, commit: Commit, generation: int | None = None) -> tuple[Commit, list[Row]]:
        """Return a commit with its rows. They stay in memory, as other readers of the stream ask for the same."""
        key = followed.name, commit.version, generation
        if (known := self._find(key)) is not None:
            return known
        rows = [row for part in scan_new_rows(followed, commit) for row in cut_rows(part).to_pylist()]
        with self._lock:
            if self._commits.setdefault(key, (commit, rows))[1] is rows:
                self._kept_rows += 1 + len(rows)
            while self._kept_rows > KEPT_ROWS and len(self._commits) > 1:
                self._kept_rows -= 1 + len(self._commits.popitem(last=False)[1][1])
        return commit, rows


def _big_position(moment: Moment) -> dict[str, int]:
    if moment.status is None:
        return {}
    versions = moment.progress.versions() if moment.progress else {}
    return {"generation": moment.status.generation, **versions}
