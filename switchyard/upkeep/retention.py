"""Decide which files of a Delta table's folder may be deleted. Pure: works on listings, touches no disk.

A version is needed while somebody may still read it: the newest, every one that was the newest in the retention time,
and every one that a progress row names which a reader may have opened in that time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

_GENERATION = re.compile(r"^generation=(\d+)")
_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.parquet$")
_OF_VERSION = re.compile(r"^(\d{20})\.(?:json|crc|checkpoint\.[\w.-]*parquet)$")
_DRAFT = re.compile(r"^(?:_commit_.*\.tmp|.*#\d+)$")


@dataclass(frozen=True)
class StoredFile:
    path: str
    size: int
    at: datetime
    """When it was last written."""


@dataclass(frozen=True)
class LogPlan:
    oldest: int
    """The oldest version that can still be opened afterwards."""
    expired: list[StoredFile]


def generation_in(path: str) -> int | None:
    found = _GENERATION.match(path)
    return int(found[1]) if found else None


def find_garbage(
    stored: Iterable[StoredFile],
    named: Collection[str],
    now: datetime,
    retention: timedelta,
    in_flight: Mapping[int, datetime | None],
) -> list[StoredFile]:
    """Return files that no needed version names, and that no running batch may still name.

    `named` are the files of all needed versions. `in_flight` has every generation that may have a driver, with the
    time of the last batch that it reported; None if it has reported none.
    """
    # A file is older than the commit that names it, and may have been in use within the retention: so wait twice.
    limit = now - 2 * retention
    return [
        file for file in stored if file.path not in named and file.at < limit and not _is_in_flight(file, in_flight)
    ]


def _is_in_flight(file: StoredFile, in_flight: Mapping[int, datetime | None]) -> bool:
    generation = generation_in(file.path)
    if generation is None or generation not in in_flight:
        return False
    reported = in_flight[generation]
    return reported is None or file.at >= reported


def version_at(log: Iterable[StoredFile], moment: datetime) -> int | None:
    """Return the version that was the newest at a moment, of those whose commits are still there."""
    commits = {version: file.at for file in log if (version := _version(file.path, _COMMIT)) is not None}
    before = [version for version, at in commits.items() if at <= moment]
    return max(before) if before else min(commits, default=None)


def first_readable(log: Sequence[StoredFile]) -> int:
    """Return the oldest version that can be opened: the log begins with its first commit, or with a checkpoint."""
    commits = [version for file in log if (version := _version(file.path, _COMMIT)) is not None]
    checkpoints = [version for file in log if (version := _version(file.path, _CHECKPOINT)) is not None]
    return 0 if 0 in commits else min(checkpoints, default=0)


def plan_log(log: Sequence[StoredFile], needed: Iterable[int], now: datetime, retention: timedelta) -> LogPlan:
    """Keep the newest checkpoint that is not after any needed version, and everything from there on."""
    # A reader that began to open the table before a checkpoint was written still needs the entries that it replaces.
    old_enough = [file for file in log if file.at <= now - retention]
    checkpoints = [version for file in old_enough if (version := _version(file.path, _CHECKPOINT)) is not None]
    first_needed = min(needed, default=0)
    base = max((version for version in checkpoints if version <= first_needed), default=first_readable(log))
    of_version = {file: version for file in log if (version := _version(file.path, _OF_VERSION)) is not None}
    # Oldest first: a vacuum that stops half-way leaves no hole in the versions that can be opened.
    old = sorted((file for file, version in of_version.items() if version < base), key=lambda file: file.path)
    drafts = [file for file in log if _DRAFT.match(file.path) and file.at < now - 2 * retention]
    return LogPlan(base, old + drafts)


def _version(path: str, pattern: re.Pattern[str]) -> int | None:
    found = pattern.match(path)
    return int(found[1]) if found else None
