"""Forget a person: write one mark to `forgotten`, and have it carried out in every generation.

A running generation does so between two batches, and the command waits for it. In an ended one, the command itself
carries the mark out, as a new attempt that fences all others out. The answer says what cannot be removed at once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.compute as pc

from switchyard.deadline import Deadline
from switchyard.errors import FencedError, InputError
from switchyard.kafka.topics import TopicReader
from switchyard.layout import BIG_TABLES, Layout, forgotten_app_id
from switchyard.offsets import Offsets, from_json, furthest
from switchyard.records import KEY
from switchyard.settings import Settings
from switchyard.swap.generations import load_spec
from switchyard.swap.history import Ledger
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.retirement_rules import is_over
from switchyard.tables import store
from switchyard.tables.folders import Folder
from switchyard.tables.forgotten import add_mark, owner_of
from switchyard.tables.logs import write_log
from switchyard.tables.pieces import scan_file
from switchyard.tables.progress import Progress, newest_progress, report_again
from switchyard.tables.removal import list_files
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.sink import BatchSink
from switchyard.tables.writer import claim_attempt

PROGRESS_POLL_SECONDS = 0.5
REPORT_SECONDS = 5.0
MOST_CHARACTERS = 10_000
MOST_CHANGES = 3
DONE = "done"
CUT_OFF = "pending: it was cut off in the middle of a batch; done when it is resumed, or with the removal of its rows"
SILENT = "pending: no driver of it answers; done before the next batch that it runs"
UNKNOWN = "pending: it has no spec any more; done with the removal of its rows"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Remainder:
    where: str
    what: str
    goes: str


REMAINDERS = (
    Remainder(
        "Kafka",
        "the person's records in the topics; no generation takes them up again",
        "when the topics' retention or compaction deletes them; the owner of the topics can delete them sooner",
    ),
    Remainder(
        "old versions of the tables",
        "files that no reader sees at the newest version",
        "with the vacuum of switchyard_maintenance after its retention",
    ),
    Remainder(
        "checkpoints",
        "the join state of each generation holds the person's events; they are never joined again",
        "when the generation has retired and its checkpoint is removed after its keep time; "
        "with SWITCHYARD_STATE_RETENTION after that time",
    ),
    Remainder(
        "rejects",
        f"values in which no {KEY} can be read, such as broken JSON, and the positions of forgotten records",
        "with the removal of the generation's rows",
    ),
    Remainder(
        "forgotten",
        "a salted hash of the user id, by which old records are recognized",
        "never by itself; see docs/personal-data.md",
    ),
    Remainder("copies of your own", "backups, exports and what readers have copied", "is in your hands"),
)


@dataclass
class Outcome:
    found: dict[str, int]
    mark: int | None = None
    generations: dict[int, str] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return all(state == DONE for state in self.generations.values())

    def document(self) -> dict[str, Any]:
        generations = {str(number): state for number, state in self.generations.items()}
        remains = [asdict(remainder) for remainder in REMAINDERS]
        return {"mark": self.mark, "found": self.found, "generations": generations, "remains": remains}


def check_user_id(user_id: str) -> str:
    """Raise if the id cannot be one. The error never repeats the id, because it may go into a log."""
    try:
        size = len(user_id.encode())
    except UnicodeEncodeError:
        raise InputError("the user id is not valid text") from None
    if not user_id or size > MOST_CHARACTERS:
        raise InputError(f"the user id needs 1 to {MOST_CHARACTERS} characters")
    return user_id


def find_rows(layout: Layout, user_id: str, say: Say) -> dict[str, Counter[int]]:
    """Count the rows of a person in each big table, by generation. Reads one column of every file."""
    found: dict[str, Counter[int]] = {name: Counter() for name in BIG_TABLES}
    next_report = Deadline(REPORT_SECONDS)
    for name in BIG_TABLES:
        if not store.has_table(layout, name):
            continue
        folder, live = Folder.at(layout.table(name)), list_files(store.open_table(layout, name))
        for number, (path, generation) in enumerate(live):
            found[name][generation] += _count_in_file(folder, path, name, user_id)
            if next_report.restart_if_passed(REPORT_SECONDS):
                say(f"{name}: {number + 1} of {len(live)} files looked at")
    return {name: +rows for name, rows in found.items()}


def _count_in_file(folder: Folder, path: str, name: str, user_id: str) -> int:
    column = "value" if name == "rejects" else KEY
    pieces = (rows[column] for rows in scan_file(folder, path, SCHEMAS[name], [column]))
    if name == "rejects":
        return sum(owner_of(value.as_py()) == user_id for values in pieces for value in values)
    return sum(pc.sum(pc.equal(ids, user_id)).as_py() or 0 for ids in pieces)


def count_rows(layout: Layout, user_id: str, say: Say) -> Outcome:
    """Count what a dry run shows."""
    return Outcome({name: rows.total() for name, rows in find_rows(layout, check_user_id(user_id), say).items()})


def forget_user(settings: Settings, reader: TopicReader, user_id: str, requested_by: str, say: Say) -> Outcome:
    layout, history = settings.layout, HistoryStore(settings.layout)
    found = find_rows(layout, check_user_id(user_id), say)
    outcome = Outcome({name: rows.total() for name, rows in found.items()})
    with_rows = {generation for rows in found.values() for generation in rows}
    ends = find_ends(layout, reader, history.ledger(), with_rows)
    outcome.mark = add_mark(layout, user_id, ends, outcome.found, requested_by)
    write_log(layout, f"a person is to be forgotten: mark {outcome.mark}, asked for by {requested_by}")
    ledger = history.ledger()
    running = {generation for generation in ledger.generations if not has_ended(ledger, generation)}
    for generation in sorted(with_rows | running):
        outcome.generations[generation] = carry_out(settings, history, generation, outcome.mark, say)
        say(f"generation {generation}: {outcome.generations[generation]}")
    return outcome


def has_ended(ledger: Ledger, generation: int) -> bool:
    """Return whether no driver writes a generation, unless it is resumed."""
    # A generation with rows that the history does not know has ended, too.
    is_known = ledger.command_of(generation) is not None
    return not is_known or ledger.is_finished(generation) or is_over(ledger, generation)


def find_ends(layout: Layout, reader: TopicReader, ledger: Ledger, with_rows: set[int]) -> Offsets:
    """Return the end of every topic that was ever asked for; of a deleted topic, the last position read."""
    generations = sorted({*ledger.generations, *with_rows})
    specs = [load_spec(layout, generation) for generation in generations]
    targets = [request.target for request in ledger.requests] + [spec.target for spec in specs if spec]
    topics = {topic for target in targets for topic in (target.usersTopic, target.accountsTopic)}
    if not topics:
        raise InputError("no generation was ever asked for, so there is nothing to forget; is SWITCHYARD_ROOT right?")
    existing = reader.list_topics()
    ends = [{topic: reader.bounds(topic)[1]} for topic in sorted(topics) if topic in existing]
    reached = [newest_progress(layout, generation) for generation in generations]
    return furthest([*ends, *(from_json(progress.endOffsets) for progress in reached if progress)])


def carry_out(settings: Settings, history: HistoryStore, generation: int, mark: int, say: Say) -> str:
    """Have a mark carried out in one generation: by its driver, or here if the generation has ended."""
    # Meanwhile, a generation may end or be resumed.
    for _ in range(MOST_CHANGES):
        if has_ended(history.ledger(), generation):
            try:
                return carry_out_in_ended(settings.layout, generation)
            except FencedError:
                say(f"generation {generation}: a driver has taken it over")
        else:
            state = wait_for_driver(settings, generation, mark, say)
            if state == DONE or not has_ended(history.ledger(), generation):
                return state
    return SILENT


def carry_out_in_ended(layout: Layout, generation: int) -> str:
    spec, last = load_spec(layout, generation), newest_progress(layout, generation)
    if spec is None:
        return UNKNOWN
    next_batch = (last.batchId if last else -1) + 1
    # Checked before the claim, which would fence out a driver that is writing its first rows.
    if BatchSink(layout, spec, attempt=0).has_begun(next_batch):
        return CUT_OFF
    attempt = claim_attempt(layout, generation)
    sink = BatchSink(layout, spec, attempt)
    if sink.has_begun(next_batch):
        return CUT_OFF
    if sink.carry_out_marks() is not None and last is not None:
        report_again(layout, replace(last, attempt=attempt), datetime.now(UTC))
    return DONE


def wait_for_driver(settings: Settings, generation: int, mark: int, say: Say) -> str:
    """Wait until the driver has carried out the mark and reported the versions without the person, or is silent."""
    began, next_report = datetime.now(UTC), Deadline(REPORT_SECONDS)
    allowed = timedelta(seconds=settings.stale_seconds + settings.heartbeat_seconds)
    while True:
        progress = newest_progress(settings.layout, generation)
        if progress is not None and mark_at(settings.layout, progress) >= mark:
            return DONE
        seen = max(began, progress.at) if progress else began
        if datetime.now(UTC) - seen > allowed:
            return SILENT
        if next_report.restart_if_passed(REPORT_SECONDS):
            say(f"generation {generation}: waiting for its driver")
        time.sleep(PROGRESS_POLL_SECONDS)


def mark_at(layout: Layout, progress: Progress) -> int:
    """Return the last mark that is carried out in all tables at the versions of a progress row."""
    app_id = forgotten_app_id(progress.generation)
    return min(
        store.open_version(layout, name, version).transaction_version(app_id) or 0
        for name, version in progress.versions().items()
    )
