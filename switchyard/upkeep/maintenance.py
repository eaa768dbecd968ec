"""Maintenance, step by step. Each step may be repeated, stopped anywhere, and run while streams write and swaps happen.

Compaction of the big tables is a Spark job (`stream/compaction.py`); all else is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from switchyard.errors import InputError
from switchyard.layout import BIG_TABLES, SMALL_TABLES, Layout
from switchyard.settings import Settings
from switchyard.swap import retirement_rules, transitions
from switchyard.swap.generations import load_spec, remove_checkpoint
from switchyard.swap.history import Ledger
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import open_history
from switchyard.tables import store
from switchyard.tables.logs import write_log
from switchyard.tables.removal import remove_generation_rows
from switchyard.tables.writer import claim_attempt
from switchyard.upkeep import small_tables
from switchyard.upkeep.referenced_versions import last_batches, read_referenced_versions, reference_newest_versions
from switchyard.upkeep.vacuum import vacuum_table

LEAST_RETENTION_HOURS = 1.0
CLOCK_SLACK = timedelta(minutes=1)
"""How far the clock of a machine that writes files may be from that of one that reports."""

MERGED = ("swap_history", "control_raw", "audits", "incidents", "forgotten")
"""Small tables that keep all their rows. The status row is one file already."""

Result = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """What one round of maintenance was asked for."""

    now: datetime
    retention: timedelta
    dry_run: bool = False


def start_round(settings: Settings, retention_hours: float | None = None, dry_run: bool = False) -> Round:
    hours = settings.vacuum_retention_hours if retention_hours is None else retention_hours
    if hours < LEAST_RETENTION_HOURS:
        raise InputError(f"a retention of {hours:g} hours is too short: somebody may still read; give 1 or more")
    return Round(datetime.now(UTC), timedelta(hours=hours), dry_run)


def retire_rows(settings: Settings, asked: Round) -> Result:
    """Remove rows, checkpoint and spec of generations whose keep time is over."""
    layout, history = settings.layout, open_history(settings.layout)
    ledger, status_row = history.ledger(), history.status_row()
    due = [
        generation
        for generation in ledger.generations
        if retirement_rules.may_remove(ledger, status_row, generation, asked.now, settings.keeping.retired)
    ]
    left_over = [generation for generation in sorted(ledger.removed) if load_spec(layout, generation) is not None]
    if asked.dry_run:
        return {"generations": [*left_over, *due], "files": 0}
    removed = [g for g in due if transitions.try_remove(history, g, asked.now, settings.keeping.retired)]
    files = sum(_remove(layout, generation) for generation in [*left_over, *removed])
    return {"generations": [*left_over, *removed], "files": files}


def _remove(layout: Layout, generation: int) -> int:
    # Fence first, should a driver of it wake up. The spec goes last, so that the next round sees a crash in between.
    claim_attempt(layout, generation)
    files = remove_generation_rows(layout, generation)
    remove_checkpoint(layout, generation)
    return files


def tend_small_tables(settings: Settings, asked: Round) -> Result:
    """Merge the files of the small tables; drop rows of logs and progress beyond their keep time."""
    layout, keeping = settings.layout, settings.keeping
    ledger = HistoryStore(layout).ledger()
    progress = small_tables.Shortened("progress")
    for generation in ledger.generations:
        before = asked.now - keeping.progress if load_spec(layout, generation) is not None else None
        if before is not None or retirement_rules.is_over(ledger, generation):
            progress += small_tables.shorten_progress(layout, generation, before, asked.dry_run)
    done = [
        small_tables.shorten_logs(layout, asked.now - keeping.logs, asked.dry_run),
        progress,
        *(small_tables.merge_small(layout, name, asked.dry_run) for name in MERGED),
    ]
    return {"tables": [asdict(shortened) for shortened in done]}


def vacuum(settings: Settings, asked: Round) -> Result:
    """Delete files and log entries that no needed version names; then let generations at rest name new versions."""
    layout = settings.layout
    ledger = HistoryStore(layout).ledger()
    living = [generation for generation in ledger.generations if load_spec(layout, generation) is not None]
    referenced = read_referenced_versions(layout, living, asked.now - asked.retention)
    at_work = [generation for generation in living if not ledger.is_retired(generation)]
    in_flight = {g: at and at - CLOCK_SLACK for g, at in last_batches(layout, at_work).items()}
    done = [
        vacuum_table(layout, name, asked.now, asked.retention, referenced.get(name, ()), in_flight, asked.dry_run)
        for name in (*BIG_TABLES, *SMALL_TABLES)
        if store.has_table(layout, name)
    ]
    if not asked.dry_run:
        for generation in living:
            if _is_at_rest(ledger, generation, asked):
                reference_newest_versions(layout, generation)
    return {"tables": [asdict(vacuumed) for vacuumed in done]}


def _is_at_rest(ledger: Ledger, generation: int, asked: Round) -> bool:
    last = ledger.last_life(generation)
    return ledger.is_retired(generation) and last is not None and last.at < asked.now - asked.retention


def clean_logs(settings: Settings, asked: Round) -> Result:
    """Remove what ended processes have left on this machine's disk, and old logs of tasks."""
    from switchyard.drivers.tidying import tidy

    return asdict(tidy(settings.workspace, asked.now, settings.keeping.logs, asked.dry_run))


STEPS: dict[str, Callable[[Settings, Round], Result]] = {
    "retire_rows": retire_rows,
    "small_tables": tend_small_tables,
    "vacuum": vacuum,
    "clean_logs": clean_logs,
}
COMPACT = "compact"
ORDER = ("retire_rows", COMPACT, "small_tables", "vacuum", "clean_logs")


def summarise(results: Mapping[str, Result]) -> Result:
    """Add up what a round has saved; a step without a result saved nothing."""
    compacted, tended, vacuumed = (_tables(results.get(step)) for step in (COMPACT, "small_tables", "vacuum"))
    retired, logs = results.get("retire_rows") or {}, results.get("clean_logs") or {}
    return {
        "generationsRemoved": retired.get("generations", []),
        "filesBefore": _sum([*compacted, *tended], "files_before"),
        "filesAfter": _sum([*compacted, *tended], "files_after"),
        "leftToTheStream": _sum(compacted, "left_alone"),
        "rowsRemoved": _sum(tended, "rows_removed"),
        "filesDeleted": _sum(vacuumed, "files") + _sum(vacuumed, "log_files"),
        "bytesFreed": _sum(vacuumed, "freed_bytes") + logs.get("freed_bytes", 0),
        "logFilesDeleted": logs.get("log_files", 0),
        "secretsDeleted": logs.get("properties_files", 0),
    }


def _tables(result: Result | None) -> list[Result]:
    return list((result or {}).get("tables", []))


def _sum(rows: Sequence[Result], name: str) -> int:
    return sum(int(row[name]) for row in rows)


def describe(summary: Result, dry_run: bool) -> str:
    removed = ", ".join(map(str, summary["generationsRemoved"])) or "none"
    return (
        f"maintenance{' (dry run, nothing was changed)' if dry_run else ''}: "
        f"{summary['filesBefore']} files became {summary['filesAfter']}, "
        f"{summary['filesDeleted']} files with {summary['bytesFreed'] / 2**20:.1f} MiB were deleted, "
        f"{summary['rowsRemoved']} old rows were dropped, generations removed: {removed}"
    )


def report(settings: Settings, results: Mapping[str, Result], dry_run: bool) -> Result:
    summary = summarise(results)
    write_log(settings.layout, describe(summary, dry_run))
    return summary
