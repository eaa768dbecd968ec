"""Delete what no needed version of a table names: data files, what dead attempts left, old files of the log.

Vacuum makes no commit. `retention.py` decides what is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow.fs as pafs
from deltalake import DeltaTable

from switchyard.errors import SwitchyardError
from switchyard.layout import Layout
from switchyard.tables import store
from switchyard.tables.commits import read_commit
from switchyard.tables.files import COMPACTED
from switchyard.tables.folders import Folder
from switchyard.upkeep.retention import StoredFile, find_garbage, first_readable, plan_log, version_at

LOG = "_delta_log"
_TEMPORARY = ("bulk-", COMPACTED, "_temporary")


@dataclass(frozen=True)
class Vacuumed:
    table: str
    files: int
    log_files: int
    freed_bytes: int
    oldest_version: int


def vacuum_table(
    layout: Layout,
    name: str,
    now: datetime,
    retention: timedelta,
    referenced: Collection[int] = (),
    in_flight: Mapping[int, datetime | None] | None = None,
    dry_run: bool = False,
) -> Vacuumed:
    """Vacuum a table. `referenced` versions stay readable, however old; for `in_flight` see `find_garbage`."""
    folder = Folder.at(layout.table(name))
    table = store.open_table(layout, name)
    if not dry_run:
        # Without a checkpoint, the oldest entries of the log would be needed to open any version.
        table.create_checkpoint()
    log = list_log(folder)
    oldest, newest = first_readable(log), int(table.version())
    since = max(oldest, newest if (found := version_at(log, now - retention)) is None else found)
    needed = {version for version in (since, *referenced, newest) if version >= oldest}
    named = paths_since(layout, name, since, newest)
    named |= {path for version in needed if version < since for path in paths_at(layout, name, version)}
    listed = folder.list_all()
    infos = [info for info in listed if info.type == pafs.FileType.File]
    stored = [StoredFile(folder.relative(info), info.size or 0, info.mtime) for info in infos]
    data = [file for file in stored if not file.path.startswith(f"{LOG}/")]
    check_all_there(table, name, {file.path for file in data})
    garbage = find_garbage(data, named, now, retention, in_flight or {})
    plan = plan_log(log, needed, now, retention)
    if not dry_run:
        for file in garbage:
            folder.delete_file(file.path)
        for file in plan.expired:
            folder.delete_file(f"{LOG}/{file.path}")
        delete_empty_folders(folder, listed, now - 2 * retention)
    freed = sum(file.size for file in [*garbage, *plan.expired])
    return Vacuumed(name, len(garbage), len(plan.expired), freed, plan.oldest)


def list_log(folder: Folder) -> list[StoredFile]:
    """List the files of the log, with their names as paths."""
    infos = folder.filesystem.get_file_info(pafs.FileSelector(folder.full(LOG), allow_not_found=True))
    return [StoredFile(info.base_name, info.size or 0, info.mtime) for info in infos if info.type == pafs.FileType.File]


def paths_at(layout: Layout, name: str, version: int) -> list[str]:
    return store.list_paths(store.open_version(layout, name, version))


def paths_since(layout: Layout, name: str, first: int, last: int) -> set[str]:
    """Return all files that a version of a span names."""
    # Opening each version would take too long: a day has tens of thousands.
    folder, paths = Folder.at(layout.table(name)), set(paths_at(layout, name, first))
    for version in range(first + 1, last + 1):
        commit = read_commit(folder, version)
        paths.update(paths_at(layout, name, version) if commit is None else (file.path for file in commit.added))
    return paths


def check_all_there(table: DeltaTable, name: str, present: Collection[str]) -> None:
    """Raise if a live file is missing: the names in the log would then make other live files look like garbage."""
    missing = [path for path in store.list_paths(table) if path not in present]
    if missing:
        raise SwitchyardError(
            f"the table {name} names {len(missing)} files that its folder does not have, the first is {missing[0]}: "
            "nothing is deleted; restore them from a backup or have the generation built again"
        )


def delete_empty_folders(folder: Folder, listed: list[pafs.FileInfo], limit: datetime) -> None:
    """Delete empty folders that jobs made for one batch."""
    # In a bucket a folder has no time, and no cost.
    folders = [info for info in listed if info.type == pafs.FileType.Directory and info.mtime and info.mtime < limit]
    for info in sorted(folders, key=lambda info: len(info.path), reverse=True):
        is_temporary = any(part.startswith(_TEMPORARY) for part in folder.relative(info).split("/"))
        if is_temporary and not folder.filesystem.get_file_info(pafs.FileSelector(info.path, allow_not_found=True)):
            folder.filesystem.delete_dir(info.path)
