"""Take messages: each is stored, settled or accepted, and only then committed. A round also does what is due."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from switchyard.errors import SwitchyardError
from switchyard.kafka.control_topic import ControlRecord, ControlTopic
from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.swap.commands import Answer, CommandHandler
from switchyard.swap.reconcile import Run, reconcile
from switchyard.tables import store
from switchyard.tables.folders import Folder
from switchyard.tables.installation import installation_id
from switchyard.tables.logs import write_log

_FAILURE = "control-failure.txt"
"""A file below the root that exists while rounds fail: the reason that was logged"""
MOST_AT_ONCE = 100
"""Messages that the watcher takes: what became of each is in its event, and it must not be away for long"""
MOST_LOOKS = 3
"""How often the watcher looks for more before it is done, however fast messages come"""
_CLI_NAME = re.compile(r"(cli|page):[\w.@+-]{1,80}")


@dataclass(frozen=True)
class ControlRound:
    """What a round has done, and the run to start because of it."""

    settled: dict[str, str]
    """swap id → outcome, or REQUESTED while it is open"""
    run: Run | None


def run_round(
    settings: Settings, kafka: Mapping[str, str], control_kafka: Mapping[str, str] | None = None
) -> ControlRound:
    """Take what waits, then do what is due, and say which run to start.

    `kafka` are the client settings for the data, `control_kafka` those for the control topic if they differ.
    """
    with _opening(settings, kafka, control_kafka) as (handler, control):
        settled = _take_waiting(handler, control)
        if booted := handler.boot():
            settled[booted.swapId] = booted.document()["outcome"]
        reconcile(settings, handler.history)
        return ControlRound(settled, handler.next_run())


def take_messages(
    settings: Settings, kafka: Mapping[str, str], control_kafka: Mapping[str, str] | None = None
) -> ControlRound:
    """Take what waits, up to MOST_AT_ONCE messages, and do nothing else that is due: for the watcher.

    A round may do the same at the same time. Each message is settled or accepted once all the same.
    """
    with _opening(settings, kafka, control_kafka) as (handler, control):
        settled: dict[str, str] = {}
        # Of a burst only the last message is run, so what came while the first one was taken is taken before.
        for _ in range(MOST_LOOKS):
            came = _take_waiting(handler, control, MOST_AT_ONCE - len(settled))
            settled |= came
            if not came or len(settled) >= MOST_AT_ONCE:
                break
        return ControlRound(settled, handler.next_run())


@contextmanager
def _opening(
    settings: Settings, kafka: Mapping[str, str], control_kafka: Mapping[str, str] | None
) -> Iterator[tuple[CommandHandler, ControlTopic]]:
    installation = installation_id(settings.layout)
    with (
        TopicReader(kafka) as reader,
        ControlTopic(control_kafka or kafka, settings.control_topic, installation) as control,
    ):
        yield CommandHandler(settings, reader), control


def _take_waiting(handler: CommandHandler, control: ControlTopic, most: int | None = None) -> dict[str, str]:
    settled: dict[str, str] = {}
    log_lost = partial(write_log, handler.settings.layout, level="WARNING")
    for number, record in enumerate(control.read_waiting(log_lost)):
        if number == most:
            # Without a commit of the ends: a round takes the rest.
            return settled
        answer = take_record(handler, record)
        settled[answer.swapId] = answer.document()["outcome"]
        control.commit(record)
    control.commit_ends()
    return settled


@contextmanager
def logging_failures(layout: Layout) -> Iterator[None]:
    """Log why rounds fail, once for each reason and not each minute, and when a round works again."""
    try:
        yield
    except SwitchyardError as error:
        # The tables may be what cannot be reached: then the log of the task is the place to look.
        with suppress(SwitchyardError, OSError, DeltaError):
            _log_failure(layout, str(error))
        raise
    _log_recovery(layout)


def _log_failure(layout: Layout, reason: str) -> None:
    folder = Folder.at(layout.under())
    with suppress(FileNotFoundError):
        if folder.read_bytes(_FAILURE).decode() == reason:
            return
    write_log(layout, f"messages on the control topic wait: {reason}", level="ERROR")
    folder.write(_FAILURE, reason.encode())


def _log_recovery(layout: Layout) -> None:
    folder = Folder.at(layout.under())
    if folder.has_file(_FAILURE):
        write_log(layout, "messages on the control topic are taken again")
        folder.delete_file(_FAILURE)


def take_record(handler: CommandHandler, record: ControlRecord) -> Answer:
    before = handler.history.ledger()
    is_new = keep_record(handler.settings.layout, record)
    swap_id = record_id(handler.settings.layout, record)
    return handler.take_value(record.value, swap_id, name_requester(record), not is_new, before)


def name_requester(record: ControlRecord) -> str:
    """Who sent it, as our command line and page say in the key. Other keys may hold anything: not repeated."""
    said = record.requested_by or ""
    return said if _CLI_NAME.fullmatch(said) else "control"


def keep_record(layout: Layout, record: ControlRecord) -> bool:
    """Store a message as it came, once; return False if it is there already."""
    value = None if record.value is None else record.value.decode("utf-8", errors="backslashreplace")
    row = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "ts": record.ts,
        "value": value,
    }

    def add_unless_stored(table: DeltaTable) -> store.Change | None:
        present = store.read_snapshot(table, "control_raw", where=_place(record), columns=["ts"])
        return None if record.ts in present["ts"].to_pylist() else store.Change(rows=[row])

    return store.transact(layout, "control_raw", add_unless_stored) is not None


def record_id(layout: Layout, record: ControlRecord) -> str:
    """The swap id of a message without an id: its place, and its time if the topic was created a second time."""
    place = f"{record.topic}-{record.partition}-{record.offset}"
    there = store.read_arrow(layout, "control_raw", where=_place(record), columns=["ts"])
    is_only = set(there["ts"].to_pylist()) <= {record.ts}
    return place if is_only else f"{place}-{round(record.ts.timestamp() * 1000)}"


def _place(record: ControlRecord) -> pc.Expression:
    return (
        (pc.field("topic") == record.topic)
        & (pc.field("partition") == record.partition)
        & (pc.field("offset") == record.offset)
    )
