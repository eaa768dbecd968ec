"""Follow a Delta log version by version: what each commit added and removed, without opening the table again.

To ask for the next version is to look for one file, so it can be done several times a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from switchyard.layout import Layout
from switchyard.tables import store
from switchyard.tables.folders import Folder

MOST_COMMITS = 1000
"""A reader that is further behind opens the table again, which is then cheaper."""


@dataclass(frozen=True)
class DataFile:
    path: str
    generation: int | None
    rows: int | None
    stamps: Mapping[str, tuple[datetime, datetime]] = field(default_factory=dict)
    """First and last moment of each column of time, where the log knows them."""
    whole: frozenset[str] = frozenset()
    """Columns of time that every row has."""

    def first_arrival(self, stamps: Sequence[str]) -> datetime:
        """Return a time that one of these columns reaches in every row. One of them at least must be known."""
        firsts = {stamp: self.stamps[stamp][0] for stamp in stamps if stamp in self.stamps}
        of_every_row = [first for stamp, first in firsts.items() if stamp in self.whole]
        return max(of_every_row) if of_every_row else min(firsts.values())

    def last_arrival(self, stamps: Sequence[str]) -> datetime | None:
        """Return a time that none of these columns exceeds in any row; None if the log does not know."""
        return max((self.stamps[stamp][1] for stamp in stamps if stamp in self.stamps), default=None)


@dataclass(frozen=True)
class Commit:
    version: int
    added: list[DataFile]
    removed: list[str]
    has_new_rows: bool
    """False for a commit, such as one of compaction, that only moved rows to other files."""

    def only(self, generation: int) -> Commit:
        """Return what the commit added to one generation."""
        return replace(self, added=[file for file in self.added if file.generation == generation])


def read_commit(folder: Folder, version: int) -> Commit | None:
    """Return what a version did; None when there is no such version yet, or its log entry was deleted."""
    actions = _read_actions(folder, version)
    if actions is None:
        return None
    adds = [action["add"] for action in actions if "add" in action]
    removes = [action["remove"] for action in actions if "remove" in action]
    return Commit(
        version,
        [_file_of(add) for add in adds],
        [unquote(remove["path"]) for remove in removes],
        any(action["dataChange"] for action in [*adds, *removes]),
    )


def read_markers(folder: Folder, version: int) -> dict[str, int] | None:
    """Return the transaction markers of a version; None when there is no such version, or its entry was deleted."""
    actions = _read_actions(folder, version)
    if actions is None:
        return None
    found = [action["txn"] for action in actions if "txn" in action]
    return {txn["appId"]: int(txn["version"]) for txn in found}


def _read_actions(folder: Folder, version: int) -> list[dict[str, Any]] | None:
    try:
        text = folder.read_bytes(f"_delta_log/{version:020}.json").decode()
    except FileNotFoundError:
        return None
    # Not splitlines(): the statistics hold values of records, which may contain other separators, such as U+2028.
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def has_commit(folder: Folder, version: int) -> bool:
    place = folder.full(f"_delta_log/{version:020}.json")
    return bool(folder.filesystem.get_file_info(place).type == pafs.FileType.File)


def _file_of(add: Mapping[str, Any]) -> DataFile:
    statistics = json.loads(add.get("stats") or "{}")
    lows, highs = statistics.get("minValues") or {}, statistics.get("maxValues") or {}
    stamps = {}
    for name in lows.keys() & highs.keys():
        span = _moment(lows[name]), _moment(highs[name])
        if span[0] is not None and span[1] is not None:
            stamps[name] = (span[0], span[1])
    generation = (add.get("partitionValues") or {}).get("generation")
    nulls = statistics.get("nullCount") or {}
    return DataFile(
        unquote(add["path"]),
        None if generation is None else int(generation),
        statistics.get("numRecords"),
        stamps,
        frozenset(name for name in stamps if nulls.get(name) == 0),
    )


def _moment(value: Any) -> datetime | None:
    # In the log, statistics of a column of time are text, and so are those of a column of text.
    if not isinstance(value, str) or "T" not in value:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return _aware(moment)


def list_data_files(table: DeltaTable) -> dict[str, DataFile]:
    """Return the live files of an opened table, by path."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [name.removeprefix("min.") for name in actions.column_names if name.startswith("min.")]
    timed = [name for name in names if pa.types.is_timestamp(actions[f"min.{name}"].type)]
    wanted = ["path", "num_records", "partition.generation"]
    wanted += [f"{what}.{name}" for name in timed for what in ("min", "max", "null_count")]
    files = {}
    for row in actions.select([name for name in wanted if name in actions.column_names]).to_pylist():
        spans = {name: (row[f"min.{name}"], row[f"max.{name}"]) for name in timed}
        stamps = {name: (_aware(low), _aware(high)) for name, (low, high) in spans.items() if low and high}
        whole = frozenset(name for name in stamps if row.get(f"null_count.{name}") == 0)
        path = unquote(row["path"])
        files[path] = DataFile(path, row.get("partition.generation"), row["num_records"], stamps, whole)
    return files


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def oldest_needed(files: Iterable[DataFile], stamps: Sequence[str], limit: int) -> datetime | None:
    """Return a time such that at least `limit` rows are not older; None when the statistics cannot tell."""
    listed = [(file.last_arrival(stamps), file) for file in files]
    if not listed or any(last is None or file.rows is None for last, file in listed):
        return None
    newest_first = sorted(((last, file) for last, file in listed if last), key=lambda item: item[0], reverse=True)
    oldest, count = datetime.max.replace(tzinfo=UTC), 0
    for _, file in newest_first:
        oldest = min(oldest, file.first_arrival(stamps))
        count += file.rows or 0
        if count >= limit:
            break
    return oldest


def files_since(files: Iterable[DataFile], stamps: Sequence[str], oldest: datetime | None) -> list[DataFile]:
    """Return the files that may hold a row from a time on; all files if the time is None."""
    return [file for file in files if oldest is None or (last := file.last_arrival(stamps)) is None or last >= oldest]


class FollowedTable:
    """The live files of one table at a version, brought up to date commit by commit."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.name = name
        self._layout = layout
        self.folder = Folder.at(layout.table(name))
        self.version = -1
        self.files: dict[str, DataFile] = {}

    def advance(self, version: int | None = None) -> list[Commit] | None:
        """Move to a version (default: the newest); return the commits on the way, None if it opened the table again."""
        if self.version < 0 or (version is not None and not 0 <= version - self.version <= MOST_COMMITS):
            self._open(version)
            return None
        commits: list[Commit] = []
        while version is None or self.version < version:
            commit = read_commit(self.folder, self.version + 1)
            if commit is None:
                if version is None and has_commit(self.folder, self.version):
                    return commits
                # Maintenance has deleted the entry: the reader was behind for long.
                self._open(version)
                return None
            for path in commit.removed:
                self.files.pop(path, None)
            self.files |= {file.path: file for file in commit.added}
            self.version = commit.version
            commits.append(commit)
        return commits

    def _open(self, version: int | None) -> None:
        if not store.has_table(self._layout, self.name):
            return
        table = store.open_table(self._layout, self.name, version)
        self.version, self.files = int(table.version()), list_data_files(table)
