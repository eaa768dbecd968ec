"""Read what the health checks judge: tables, broker, disks, processes of this machine."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from switchyard.drivers.running_drivers import list_drivers, list_spares
from switchyard.errors import SwitchyardError
from switchyard.health.audits import ASKED, newest_audit
from switchyard.health.checks import CHECKS, WINDOW, Disk, HealthInputs, Heartbeat, Level, Verdict
from switchyard.kafka.topics import TopicReader
from switchyard.settings import Settings
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.progress import Progress, recent_rows
from switchyard.wording import describe_error

_Reader = Callable[[HealthInputs, Settings, Mapping[str, str]], HealthInputs]

log = logging.getLogger("switchyard.health")


def run_checks(settings: Settings, kafka: Mapping[str, str], checks: Iterable[str] = CHECKS) -> list[Verdict]:
    """Run some checks, and read what several of them need once."""
    known, verdicts = read_inputs(settings), []
    read: dict[_Reader | None, HealthInputs] = {None: known}
    for check in checks:
        reader = _PARTS.get(check)
        try:
            if reader is not None and reader not in read:
                read[reader] = reader(known, settings, kafka)
            verdicts.append(CHECKS[check](read[reader], settings.limits))
        except (SwitchyardError, DeltaError, OSError) as error:
            # A verdict, too: a person has to look.
            log.exception("The check %s could not be made.", check)
            verdicts.append(Verdict(check, Level.PERSON, f"the check could not be made: {describe_error(error)}"))
    return verdicts


def read_inputs(settings: Settings) -> HealthInputs:
    history = HistoryStore(settings.layout)
    return HealthInputs(datetime.now(UTC), history.ledger(), history.status_row())


def add_heartbeats(inputs: HealthInputs, settings: Settings, kafka: Mapping[str, str]) -> HealthInputs:
    generation = inputs.status_row.generation
    rows = [] if generation is None else recent_rows(settings.layout, generation, WINDOW)
    return replace(inputs, heartbeats=[_heartbeat(row) for row in sorted(rows, key=lambda row: row.order)])


def add_broker(inputs: HealthInputs, settings: Settings, kafka: Mapping[str, str]) -> HealthInputs:
    try:
        with TopicReader(kafka) as reader:
            reader.list_topics()
    except SwitchyardError as error:
        return replace(inputs, broker_error=str(error))
    return inputs


def add_disks(inputs: HealthInputs, settings: Settings, kafka: Mapping[str, str]) -> HealthInputs:
    places = {"home": settings.workspace.home}
    if settings.layout.is_local:
        places["tables"] = Path(settings.layout.under())
    disks = []
    for name, path in places.items():
        if path.exists():
            usage = shutil.disk_usage(path)
            disks.append(Disk(name, usage.free, usage.total))
    return replace(inputs, disks=disks)


def add_drivers(inputs: HealthInputs, settings: Settings, kafka: Mapping[str, str]) -> HealthInputs:
    return replace(inputs, drivers=list_drivers(settings.workspace), spares=list_spares(settings.workspace))


def add_audit(inputs: HealthInputs, settings: Settings, kafka: Mapping[str, str]) -> HealthInputs:
    mine = pc.field("generation") == inputs.status_row.generation
    rows = store.read_rows(settings.layout, "audits", where=mine, columns=list(ASKED))
    return replace(inputs, audit=newest_audit(rows))


def _heartbeat(row: Progress) -> Heartbeat:
    return Heartbeat(
        at=row.at,
        attempt=row.attempt,
        batch_id=row.batchId,
        input_rows=row.inputRows,
        rejected_rows=row.rejectedRows,
        lag=row.lag,
        batch_seconds=row.batchMs / 1000,
        is_batch=row.startOffsets is not None,
        moved_at=row.movedAt,
        executors=row.executors,
    )


_PARTS: dict[str, _Reader] = {
    "broker": add_broker,
    "heartbeat": add_heartbeats,
    "progress": add_heartbeats,
    "lag": add_heartbeats,
    "rejects": add_heartbeats,
    "disk": add_disks,
    "drivers": add_drivers,
    "audit": add_audit,
}
