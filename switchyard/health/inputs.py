"""Looks at everything the health checks judge by: tables, broker, disks, processes of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc

from switchyard.drivers.running import list_drivers, list_spares
from switchyard.errors import SwitchyardError
from switchyard.health.audits import ASKED, newest_audit
from switchyard.health.checks import CHECKS, WINDOW, Beat, Disk, Sight, Verdict
from switchyard.kafka.topics import TopicReader
from switchyard.settings import Settings
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.progress import Progress, recent_rows


def inspect(settings: Settings, kafka: Mapping[str, str], check: str) -> Verdict:
    """One check, with a look at no more than it needs."""
    sight = look(settings)
    see = _PARTS.get(check)
    return CHECKS[check](see(sight, settings, kafka) if see else sight, settings.limits)


def inspect_all(settings: Settings, kafka: Mapping[str, str]) -> list[Verdict]:
    return [inspect(settings, kafka, check) for check in CHECKS]


def look(settings: Settings) -> Sight:
    history = HistoryStore(settings.layout)
    return Sight(datetime.now(UTC), history.ledger(), history.status_row())


def see_beats(sight: Sight, settings: Settings, kafka: Mapping[str, str]) -> Sight:
    generation = sight.status_row.generation
    rows = [] if generation is None else recent_rows(settings.layout, generation, WINDOW)
    return replace(sight, beats=[_beat(row) for row in sorted(rows, key=lambda row: row.order)])


def see_broker(sight: Sight, settings: Settings, kafka: Mapping[str, str]) -> Sight:
    try:
        with TopicReader(kafka) as reader:
            reader.list_topics()
    except SwitchyardError as error:
        return replace(sight, broker_error=str(error))
    return sight


def see_disks(sight: Sight, settings: Settings, kafka: Mapping[str, str]) -> Sight:
    places = {"home": settings.workspace.home}
    if settings.layout.is_local:
        places["tables"] = Path(settings.layout.under())
    disks = []
    for name, path in places.items():
        if path.exists():
            usage = shutil.disk_usage(path)
            disks.append(Disk(name, usage.free, usage.total))
    return replace(sight, disks=disks)


def see_drivers(sight: Sight, settings: Settings, kafka: Mapping[str, str]) -> Sight:
    return replace(sight, drivers=list_drivers(settings.workspace), spares=list_spares(settings.workspace))


def see_audit(sight: Sight, settings: Settings, kafka: Mapping[str, str]) -> Sight:
    mine = pc.field("generation") == sight.status_row.generation
    rows = store.read_rows(settings.layout, "audits", where=mine, columns=list(ASKED))
    return replace(sight, audit=newest_audit(rows))


def _beat(row: Progress) -> Beat:
    return Beat(
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


_PARTS: dict[str, Callable[[Sight, Settings, Mapping[str, str]], Sight]] = {
    "broker": see_broker,
    "heartbeat": see_beats,
    "progress": see_beats,
    "lag": see_beats,
    "rejects": see_beats,
    "disk": see_disks,
    "drivers": see_drivers,
    "audit": see_audit,
}
