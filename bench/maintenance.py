"""What a day of commits costs a reader of `final_ui`, against tables that were compacted just now.

A day with a commit each second is simulated: 86,400 entries in the logs of `joined` and `progress`, as the sink writes
them, with the times they would have had. The last maintenance was as long ago as it can be by the schedule of
`switchyard_maintenance`: rows up to then lie in files of the size that compaction makes. Later ones lie in the files
that the driver has left after merging its small ones, by the rules that it goes by itself, and at the worst moment:
just before it merges again. All files are written by the writer that the sink uses. Checkpoints of the logs are made by
delta-rs and are as old as they get. Rows are only added; a join that revises rows removes some of these files itself.

Then the tables are compacted by the code of the DAG's tasks, `joined` on Spark and `progress` without it, and the same
reads are made again. Nothing is kept from one read to the next: each is like that of a command that has just started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from croniter import croniter
from deltalake.transaction import AddAction

from bench.measure import Figure, keep, tell
from bench.rows import draw_rows, set_active
from bench.stage import start_spark
from switchyard.layout import BIG_TABLES, PROJECT, Layout, batch_app_id
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.stream.compaction import compact_tables
from switchyard.stream.runner import most_merged_bytes
from switchyard.swap import transitions
from switchyard.swap.generations import keep_spec
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import files, stable_names, store
from switchyard.tables.files import LiveFile
from switchyard.tables.folders import Folder
from switchyard.tables.live import LiveTables
from switchyard.tables.merging import FAN_IN, choose_merges
from switchyard.tables.progress import Progress, newest_progress, report_again
from switchyard.tables.queries import Query
from switchyard.tables.reader import Reader
from switchyard.upkeep import maintenance, small_tables
from tests.specs import make_spec

ROWS_IN_A_COMMIT = 50
ROWS_IN_A_FULL_FILE = 400_000
CHECKPOINT_COMMITS = 100
"""delta-rs makes a checkpoint so often."""
GENERATION = 1
CHUNK = 2_000
SAMPLE_COMMITS = 200
AGAINST = "the same tables, compacted just now"
REPEATS, ENOUGH_SECONDS = 7, 5.0
TARGET = 1.5
MEMORY, MOST_BYTES = Path("/dev/shm"), 4 * 2**30
SCHEDULE = re.compile(r'CronTriggerTimetable\("([^"]+)"')


@dataclass(frozen=True)
class Day:
    """Which commits came when, and which of them are still the only ones in their file."""

    end: datetime
    commits: int
    late_commits: int
    """What the last maintenance has not seen."""

    def at(self, number: int) -> datetime:
        """Return the time of a commit, counted from 1; the last one is at the end."""
        return self.end - timedelta(seconds=self.commits - number)

    @property
    def small_commits(self) -> int:
        return self.late_commits % FAN_IN

    @property
    def merged_commits(self) -> int:
        return self.commits - self.small_commits

    def version_of(self, number: int) -> int:
        """Return the version that a commit has made; maintenance and merges together made one more."""
        return number + (1 if 0 < self.merged_commits < number else 0)


def longest_wait(dag: str) -> timedelta:
    """Return the longest time between two runs, by the schedule in the text of a DAG."""
    found = SCHEDULE.search(dag)
    if found is None:
        raise SystemExit(
            "the DAG switchyard_maintenance has no CronTriggerTimetable; tell bench/maintenance.py how it runs"
        )
    times = croniter(found[1], datetime(2026, 1, 1, tzinfo=UTC))
    runs = [times.get_next(datetime) for _ in range(400)]
    return max(later - sooner for sooner, later in pairwise(runs))


def plan_day(commits: int, wait: timedelta, compact_after: timedelta, end: datetime) -> Day:
    """Just before the next run, and just before the driver merges: FAN_IN less one commits have separate files."""
    late = min(commits, int((wait + compact_after).total_seconds()))
    return Day(end, commits, late - (late + 1) % FAN_IN)


def plan_merges(commits: int, bytes_of: Callable[[int], int], most_bytes: int) -> list[int]:
    """How many commits are in each file that a driver leaves, the oldest first."""
    live: dict[str, tuple[LiveFile, int]] = {}

    def put(first: int, count: int) -> None:
        path = f"{first:09}"
        live[path] = LiveFile(path, bytes_of(count), count, written=first), count

    for number in range(1, commits + 1):
        put(number, 1)
        if number % FAN_IN == 0:
            for group in choose_merges([file for file, _ in live.values()], most_bytes):
                put(group[0].written, sum(live.pop(file.path)[1] for file in group))
    return [count for _, (_, count) in sorted(live.items())]


def joined_rows(day: Day, first: int, commits: int) -> pa.Table:
    """Return the rows of some commits, counted from 1."""
    every = timedelta(seconds=1) / ROWS_IN_A_COMMIT
    return draw_rows(
        (first - 1) * ROWS_IN_A_COMMIT, commits * ROWS_IN_A_COMMIT, day.at(0), every, longest_wait=timedelta(hours=1)
    )


def progress_rows(day: Day, first: int, commits: int) -> pa.Table:
    rows = [asdict(progress_of(day, number)) for number in range(first, first + commits)]
    return store.rows_to_arrow("progress", rows).drop_columns(["generation"])


def progress_of(day: Day, number: int) -> Progress:
    begun, ended = (json.dumps({"users": {"0": n}, "accounts": {"0": n}}) for n in (number - 1, number))
    return Progress(
        generation=GENERATION,
        attempt=1,
        batchId=number,
        at=day.at(number),
        inputRows=ROWS_IN_A_COMMIT,
        rowsPerSecond=float(ROWS_IN_A_COMMIT),
        batchMs=500,
        lag=0,
        usersVersion=0,
        accountsVersion=0,
        joinedVersion=day.version_of(number),
        rejectsVersion=0,
        rejectedRows=0,
        tombstones=0,
        startOffsets=begun,
        endOffsets=ended,
    )


ROWS: dict[str, Callable[[Day, int, int], pa.Table]] = {"joined": joined_rows, "progress": progress_rows}
ROWS_OF_A_COMMIT = {"joined": ROWS_IN_A_COMMIT, "progress": 1}
ROWS_OF_A_FULL_FILE = {"joined": ROWS_IN_A_FULL_FILE, "progress": small_tables.ROWS_PER_FILE}


def write_files(root: str, table: str, day: Day, first: int, commits: int, in_each: int) -> list[dict[str, Any]]:
    """Return the files of so many commits each, as entries of a log; in a separate process."""
    folder, done = Folder.at(Layout(root).table(table)), []
    for number in range(first, first + commits, in_each):
        rows = ROWS[table](day, number, min(in_each, first + commits - number))
        if table == "joined" and in_each > 1:
            rows = rows.sort_by([("userPartition", "ascending"), ("userOffset", "ascending")])
        done.append(entry_of(files.write_file(folder, GENERATION, rows), day.at(number)))
    return done


def entry_of(added: AddAction, at: datetime) -> dict[str, Any]:
    return {
        "path": added.path,
        "partitionValues": added.partition_values,
        "size": added.size,
        "modificationTime": milliseconds(at),
        "dataChange": True,
        "stats": added.stats,
    }


def milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def simulate(settings: Settings, table: str, day: Day, pool: Executor) -> None:
    """The files that are there at the end of the day, and the log of all commits."""
    layout = settings.layout
    store.create_table(layout, table)
    in_each = ROWS_OF_A_FULL_FILE[table] // ROWS_OF_A_COMMIT[table]
    seen = day.commits - day.late_commits
    parts = [(*part, in_each) for part in split(1, seen, in_each)]
    bytes_of = measure_files(Path(layout.root) / "sample", table, day)
    counts = plan_merges(day.late_commits - day.small_commits, bytes_of, most_merged_bytes(settings))
    starts = [seen + 1 + before for before in accumulate([0, *counts[:-1]])]
    parts += [(start, count, count) for start, count in zip(starts, counts, strict=True)]
    single = [(*part, 1) for part in split(day.merged_commits + 1, day.small_commits, CHUNK)]
    merged_jobs, single_jobs = (
        [pool.submit(write_files, layout.root, table, day, *part) for part in chosen] for chosen in (parts, single)
    )
    merged, small_files = ([entry for job in jobs for entry in job.result()] for jobs in (merged_jobs, single_jobs))
    tell(f"  {table}: {len(merged) + len(small_files)} files, {len(small_files)} of them with a single commit")
    log = Path(layout.table(table)) / "_delta_log"
    write_log(log, day, merged, small_files)
    put_checkpoint(Layout(str(Path(layout.root) / "checkpoint")), table, log, day, merged)


def put_checkpoint(scratch: Layout, table: str, log: Path, day: Day, merged: Sequence[dict[str, Any]]) -> None:
    """As old as they get: the last commits are read entry by entry.

    To make it of the log itself delta-rs would read 86,400 entries for minutes. So it makes that of a log with one
    entry in which all this has happened, and it becomes the one of the version that has these files.
    """
    store.create_table(scratch, table)
    folder = Path(scratch.table(table)) / "_delta_log"
    at, version = day.at(day.merged_commits), day.version_of(day.merged_commits) + 1
    assert day.version_of(day.commits) - version < CHECKPOINT_COMMITS
    write_entry(folder, 1, at, [*gone_actions(day, merged[0]), *({"add": entry} for entry in merged)], marker=version)
    store.open_table(scratch, table).create_checkpoint()
    [made] = folder.glob("*.checkpoint.parquet")
    made.rename(log / f"{version:020}.checkpoint.parquet")
    hint = json.loads((folder / "_last_checkpoint").read_text())
    (log / "_last_checkpoint").write_text(json.dumps(hint | {"version": version}))


def measure_files(folder: Path, table: str, day: Day) -> Callable[[int], int]:
    """About how many bytes a file of so many commits has: between a small one and a large one it is a straight line."""
    one, many = (write_files(str(folder), table, day, 1, count, count)[0]["size"] for count in (1, SAMPLE_COMMITS))
    each = (many - one) / (SAMPLE_COMMITS - 1)
    return lambda commits: int(one + each * (commits - 1))


def split(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """Return parts of so many numbers each: the first of each, and how many."""
    return [(start, min(size, first + count - start)) for start in range(first, first + count, size)]


def write_log(log: Path, day: Day, full: Sequence[dict[str, Any]], small_files: Sequence[dict[str, Any]]) -> None:
    """One entry for each commit, and one in which larger files were put in the place of the small ones.

    The files that it took away are named, as their entries make a log long, but nobody opens them any more.
    """
    for number in range(1, day.merged_commits + 1):
        entry = gone_entry(small_files[0], number) | {"modificationTime": milliseconds(day.at(number))}
        write_entry(log, number, day.at(number), [{"add": entry}])
    if day.merged_commits:
        added = [{"add": entry | {"dataChange": False}} for entry in full]
        number = day.merged_commits + 1
        write_entry(log, number, day.at(day.merged_commits), [*gone_actions(day, small_files[0]), *added])
    for number, entry in enumerate(small_files, day.merged_commits + 1):
        write_entry(log, day.version_of(number), day.at(number), [{"add": entry}])


def gone_entry(like: dict[str, Any], number: int) -> dict[str, Any]:
    return like | {"path": f"generation={GENERATION}/part-{number}.parquet"}


def gone_actions(day: Day, like: dict[str, Any]) -> list[dict[str, Any]]:
    at = milliseconds(day.at(day.merged_commits))
    return [{"remove": remove_entry(gone_entry(like, number), at)} for number in range(1, day.merged_commits + 1)]


def remove_entry(added: dict[str, Any], at: int) -> dict[str, Any]:
    kept = {name: added[name] for name in ("path", "partitionValues", "size")}
    return kept | {"deletionTimestamp": at, "dataChange": False, "extendedFileMetadata": True}


def write_entry(
    log: Path, version: int, at: datetime, actions: list[dict[str, Any]], marker: int | None = None
) -> None:
    info = {"commitInfo": {"timestamp": milliseconds(at), "operation": "WRITE", "clientVersion": "delta-rs"}}
    batch = {"appId": batch_app_id(GENERATION), "version": marker or version, "lastUpdated": milliseconds(at)}
    text = "\n".join(json.dumps(action) for action in [info, {"txn": batch}, *actions])
    path = log / f"{version:020}.json"
    path.write_text(text)
    os.utime(path, (at.timestamp(), at.timestamp()))


def prepare(settings: Settings, day: Day) -> None:
    """Make a root with one active generation, as far as readers and maintenance look at it."""
    layout = settings.layout
    spec = make_spec(GENERATION, Target("users", "accounts", "inner"))
    keep_spec(layout, spec)
    transitions.ask_once(HistoryStore(layout), "first", "bench", spec.generation, spec.target, spec.start)
    set_active(layout, GENERATION)
    for name in BIG_TABLES:
        store.open_table(layout, name)


def read_newest(layout: Layout) -> int:
    return len(stable_names.newest_rows(layout, "final_ui", 100))


def read_page(layout: Layout) -> int:
    return len(Reader(LiveTables(layout)).page("final_ui", Query(limit=100)).rows)


def read_all(layout: Layout) -> int:
    found = stable_names.open_stable(layout, "final_ui")
    assert found is not None
    return int(store.read_snapshot(found[0], "joined", generation=found[1], columns=["balance"]).num_rows)


READS: dict[str, Callable[[Layout], int]] = {
    "the newest 100 rows": read_newest,
    "the first page": read_page,
    "all rows": read_all,
}


def time_reads(layout: Layout) -> dict[str, tuple[float, int]]:
    """Median seconds of each read, and how many rows it gave. A slow read need not be made often."""
    found = {}
    for label, read in READS.items():
        seconds: list[float] = []
        while not seconds or (len(seconds) < REPEATS and sum(seconds) < ENOUGH_SECONDS):
            began = time.perf_counter()
            rows = read(layout)
            seconds.append(time.perf_counter() - began)
        found[label] = statistics.median(seconds), rows
        tell(f"  {label}: {found[label][0]:.3f} s, {rows} rows")
    return found


def maintain(settings: Settings) -> None:
    """Do the steps that change what a reader meets, whatever the age; of `vacuum` that is its checkpoint."""
    layout, keeping = settings.layout, replace(settings.keeping, compact_after=timedelta())
    began = time.monotonic()
    spark = start_spark(settings)
    done = compact_tables(lambda: spark, layout, keeping)
    spark.stop()
    tell(f"  compact: {time.monotonic() - began:.1f} s, {sum(one.files_before for one in done)} files")
    maintenance.tend_small_tables(settings, maintenance.start_round(settings))
    tell_fresh_progress(layout)
    for table in ROWS:
        store.open_table(layout, table).create_checkpoint()


def tell_fresh_progress(layout: Layout) -> None:
    """Write a progress row, as the next batch would: readers see the compacted files from then on."""
    last = newest_progress(layout, GENERATION)
    assert last is not None
    report_again(layout, last, datetime.now(UTC))


def measure(settings: Settings, day: Day) -> tuple[list[Figure], dict[str, Any]]:
    layout, began = settings.layout, time.monotonic()
    prepare(settings, day)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for table in ROWS:
            simulate(settings, table, day, pool)
    tell(f"{day.commits} commits: {time.monotonic() - began:.0f} s to simulate")
    after_a_day = time_reads(layout)
    tell("maintenance")
    maintain(settings)
    fresh = time_reads(layout)
    assert all(after_a_day[label][1] == fresh[label][1] for label in READS), (after_a_day, fresh)
    figures = [
        Figure(f"maintenance, read {label}", after_a_day[label][0], fresh[label][0], "s", TARGET, against=AGAINST)
        for label in READS
    ]
    facts = {
        "commits": day.commits,
        "commits since the last maintenance": day.late_commits,
        "rows": day.commits * ROWS_IN_A_COMMIT,
    }
    return figures, facts


def find_place() -> str | None:
    """In memory if there is room: some disks take half a minute to forget so many files. Else the usual place."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MOST_BYTES
    return str(MEMORY) if has_room else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=86_400)
    parser.add_argument("--minutes-between", type=float, help="another time between two maintenances than the DAG's")
    options = parser.parse_args()
    dag = (PROJECT / "dags" / "switchyard_maintenance.py").read_text()
    wait = longest_wait(dag) if options.minutes_between is None else timedelta(minutes=options.minutes_between)
    with tempfile.TemporaryDirectory(dir=find_place()) as name:
        settings = Settings(root=name)
        day = plan_day(options.commits, wait, settings.keeping.compact_after, datetime.now(UTC))
        figures, facts = measure(settings, day)
    keep("maintenance", figures, facts | {"minutes between two maintenances": wait.total_seconds() / 60})
    return 0


if __name__ == "__main__":
    sys.exit(main())
