"""Remove what processes have left on this machine: Kafka settings of drivers that are gone, old logs. No tables."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from switchyard.drivers import processes, running_drivers
from switchyard.drivers.supervisor_state import read_state
from switchyard.layout import Workspace

ROTATE_BYTES = 50 * 2**20
JOB_FOLDERS_AFTER = timedelta(days=1)
_PROPERTIES = re.compile(r"^kafka-\d+-(\d+)(-\w+)?\.properties$")


@dataclass(frozen=True)
class Tidied:
    properties_files: int
    pid_files: int
    log_files: int
    freed_bytes: int


def tidy(workspace: Workspace, now: datetime, keep_logs: timedelta, dry_run: bool = False) -> Tidied:
    secrets, pids = orphaned_properties(workspace), dead_pid_files(workspace)
    old = [*old_task_logs(workspace, now - keep_logs), *old_process_logs(workspace, now - keep_logs)]
    freed = sum(path.stat().st_size for path in [*secrets, *pids, *old] if path.exists())
    if not dry_run:
        for path in [*secrets, *pids, *old]:
            path.unlink(missing_ok=True)
        _remove_empty_folders(workspace.airflow / "logs", now - keep_logs)
        before = now - JOB_FOLDERS_AFTER
        for folder in [*old_job_folders(workspace, before), *left_spare_folders(workspace, before)]:
            shutil.rmtree(folder, ignore_errors=True)
    logs = [folder.glob("*.log") for folder in (workspace.process_logs, workspace.broker)]
    long = [path for path in chain(*logs, workspace.spares.glob("*/*.log")) if _is_long(path)]
    for path in long:
        freed += shorten_log(path) if not dry_run else path.stat().st_size
    return Tidied(len(secrets), len(pids), len(old) + len(long), freed)


def orphaned_properties(workspace: Workspace) -> list[Path]:
    """Find Kafka settings whose writer is gone, and that no driver names, which may outlive its task."""
    commands = [command for _, command in processes.list_commands()]
    return [
        path
        for path in sorted(workspace.secrets.glob("kafka-*.properties"))
        if (named := _PROPERTIES.match(path.name))
        and not processes.find_process(int(named[1]))
        and not any(str(path) in command for command in commands)
    ]


def dead_pid_files(workspace: Workspace) -> list[Path]:
    # Read the files before the processes: then a driver that starts in between is found.
    kept = {}
    for path in sorted(workspace.run.glob("driver-*.pid")):
        with suppress(OSError, ValueError):
            kept[path] = int(path.read_text())
    alive = {process.pid for process, _ in running_drivers.find_drivers(workspace)}
    return [path for path, pid in kept.items() if pid not in alive]


def old_job_folders(workspace: Workspace, before: datetime) -> list[Path]:
    return [path for path in workspace.run.glob("job-*") if path.is_dir() and _is_older(path, before)]


def left_spare_folders(workspace: Workspace, before: datetime) -> list[Path]:
    """Find folders of spares whose driver is gone; a taken spare uses its folder as long as it runs."""
    commands = [command for _, command in running_drivers.find_drivers(workspace)]
    return [
        path
        for path in workspace.spares.glob("spare-*")
        if _is_older(path, before) and not any(str(path) in command for command in commands)
    ]


def old_task_logs(workspace: Workspace, before: datetime) -> Iterator[Path]:
    # A running task writes to its log, so no old file is of one.
    for folder, _, names in os.walk(workspace.airflow / "logs"):
        for name in names:
            path = Path(folder) / name
            if not path.is_symlink() and _is_older(path, before):
                yield path


def old_process_logs(workspace: Workspace, before: datetime) -> list[Path]:
    state = read_state(workspace)
    running = {"supervisor", *(state.components if state else ())}
    logs = sorted([*workspace.process_logs.glob("*.log"), *workspace.process_logs.glob("*.log.1")])
    return [path for path in logs if path.name.partition(".")[0] not in running and _is_older(path, before)]


def shorten_log(path: Path) -> int:
    """Move what a running process has written into `<name>.1`; return the size of the `.1` that it replaces."""
    older = path.with_name(f"{path.name}.1")
    freed = older.stat().st_size if older.exists() else 0
    shutil.copyfile(path, older)
    # All logs are opened for appending, so the process goes on at the beginning of the file.
    os.truncate(path, 0)
    return freed


def _is_long(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_size > ROTATE_BYTES
    return False


def _is_older(path: Path, than: datetime) -> bool:
    with suppress(OSError):
        return path.stat().st_mtime < than.timestamp()
    return False


def _remove_empty_folders(root: Path, before: datetime) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        path = Path(folder)
        if path != root and _is_older(path, before):
            with suppress(OSError):
                path.rmdir()
