"""Switchyard's own figures as metrics: what is exported, under which names, and how each follows from what was seen.

Pure: no I/O and no clock of its own. Names and labels are a contract with dashboards and alerts; docs/observability.md
has a row for each. A figure that is not known has no sample: a dashboard shows a gap and not a zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from switchyard.health.checks import CHECKS, LastAudit, Level
from switchyard.health.exposition import Family, Kind, Metric, Sample
from switchyard.health.incidents import Incident
from switchyard.offsets import Offsets, count_records
from switchyard.policies import Target
from switchyard.swap.state_machine import SETTLING, Event, Ledger

PREFIX = "switchyard_"


class GenerationState(StrEnum):
    BUILDING = "building"
    ACTIVE = "active"
    LINGERING = "lingering"
    RETIRED = "retired"
    """It can be had back: a retired stream, or a finished snapshot that nobody reads."""
    FAILED = "failed"
    """It ended before it was active."""
    REMOVED = "removed"


@dataclass(frozen=True)
class TableSize:
    files: int
    rows: int | None
    """None when the log does not know it."""


@dataclass(frozen=True)
class ActiveFigures:
    """What is known about the active generation."""

    generation: int
    epoch: int
    target: Target
    is_healthy: bool
    records_per_second: float
    heartbeat_age_seconds: float | None = None
    attempt: int | None = None
    batch_id: int | None = None
    lag: int | None = None
    start: Offsets = field(default_factory=dict)
    position: Offsets = field(default_factory=dict)
    """The next record to read, of each partition."""
    batch_seconds: Sequence[float] = ()
    """How long the batches of the last minute took, oldest first; the last one in any case."""
    audit: LastAudit | None = None
    tables: Mapping[str, TableSize] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    now: datetime
    version: str
    ledger: Ledger = field(default_factory=Ledger)
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    """The open ones by their check."""
    active: ActiveFigures | None = None


Reading = Callable[[Figures], Iterable[Sample]]
_READINGS: dict[Metric, Reading] = {}


def measure(figures: Figures) -> list[Family]:
    return [Family(metric, tuple(read(figures))) for metric, read in _READINGS.items()]


def exported_metrics() -> list[Metric]:
    return list(_READINGS)


def _export(name: str, kind: Kind, text: str) -> Callable[[Reading], Reading]:
    def keep(reading: Reading) -> Reading:
        _READINGS[Metric(PREFIX + name, kind, text)] = reading
        return reading

    return keep


def _export_active(
    name: str, kind: Kind, text: str
) -> Callable[[Callable[[ActiveFigures], Iterable[Sample]]], Reading]:
    """For what only an active generation has."""

    def keep(read: Callable[[ActiveFigures], Iterable[Sample]]) -> Reading:
        return _export(name, kind, text)(lambda figures: read(figures.active) if figures.active else ())

    return keep


def _known(value: float | None, **labels: str) -> list[Sample]:
    return [] if value is None else [Sample(value, labels)]


@_export("build_info", Kind.GAUGE, "Always 1; the version of Switchyard is a label.")
def _build_info(figures: Figures) -> list[Sample]:
    return _known(1, version=figures.version)


@_export("healthy", Kind.GAUGE, "Whether the active generation's rows move: 1, or 0, also when nothing is active.")
def _healthy(figures: Figures) -> list[Sample]:
    return _known(int(figures.active is not None and figures.active.is_healthy))


@_export_active("active_generation", Kind.GAUGE, "The number of the active generation.")
def _active_generation(active: ActiveFigures) -> list[Sample]:
    return _known(active.generation)


@_export_active("active_info", Kind.GAUGE, "Always 1; what the active generation joins is in the labels.")
def _active_info(active: ActiveFigures) -> list[Sample]:
    target = active.target
    labels = {"users_topic": target.usersTopic, "accounts_topic": target.accountsTopic, "join_type": target.joinType}
    return _known(1, generation=str(active.generation), **labels)


@_export_active("epoch", Kind.GAUGE, "The epoch of the status row: one more with each flip.")
def _epoch(active: ActiveFigures) -> list[Sample]:
    return _known(active.epoch)


@_export_active(
    "lag_records", Kind.GAUGE, "Records in Kafka that were not read yet; absent when Kafka does not answer."
)
def _lag(active: ActiveFigures) -> list[Sample]:
    return _known(active.lag)


@_export_active("position_offset", Kind.GAUGE, "The offset that is read next, of each partition.")
def _position(active: ActiveFigures) -> list[Sample]:
    return [
        Sample(offset, {"topic": topic, "partition": str(partition)})
        for topic, partitions in sorted(active.position.items())
        for partition, offset in sorted(partitions.items())
    ]


@_export_active("records_read_total", Kind.COUNTER, "Records read by the active generation, by its offsets.")
def _records_read(active: ActiveFigures) -> list[Sample]:
    if not active.start or not active.position:
        return []
    return [
        Sample(count_records(active.start, {topic: partitions}), {"generation": str(active.generation), "topic": topic})
        for topic, partitions in sorted(active.position.items())
    ]


@_export_active("records_per_second", Kind.GAUGE, "Records read a second, over the 10 seconds before the last report.")
def _rate(active: ActiveFigures) -> list[Sample]:
    return _known(active.records_per_second)


@_export_active("batches_total", Kind.COUNTER, "Micro-batches that the active generation has committed.")
def _batches(active: ActiveFigures) -> list[Sample]:
    return [] if active.batch_id is None else _known(active.batch_id + 1, generation=str(active.generation))


@_export_active("batch_seconds", Kind.GAUGE, "How long the last micro-batch took.")
def _batch_seconds(active: ActiveFigures) -> list[Sample]:
    return [Sample(seconds) for seconds in active.batch_seconds[-1:]]


@_export_active("batch_max_seconds", Kind.GAUGE, "How long the longest micro-batch of the last minute took.")
def _batch_max_seconds(active: ActiveFigures) -> list[Sample]:
    return _known(max(active.batch_seconds, default=None))


@_export_active(
    "heartbeat_age_seconds", Kind.GAUGE, "How long ago the active generation reported; a snapshot does not."
)
def _heartbeat_age(active: ActiveFigures) -> list[Sample]:
    return _known(active.heartbeat_age_seconds)


@_export_active("driver_attempts_total", Kind.COUNTER, "Attempts of the active generation: one more with each driver.")
def _attempts(active: ActiveFigures) -> list[Sample]:
    return _known(active.attempt, generation=str(active.generation))


@_export_active("table_rows", Kind.GAUGE, "Rows of the active generation in a table; of rejects, records refused.")
def _table_rows(active: ActiveFigures) -> list[Sample]:
    return [Sample(size.rows, {"table": name}) for name, size in sorted(active.tables.items()) if size.rows is not None]


@_export_active("table_files", Kind.GAUGE, "Files of the active generation in a table; maintenance makes them fewer.")
def _table_files(active: ActiveFigures) -> list[Sample]:
    return [Sample(size.files, {"table": name}) for name, size in sorted(active.tables.items())]


@_export_active("audit_differences", Kind.GAUGE, "Differences that the last audit of the active generation found.")
def _audit_differences(active: ActiveFigures) -> list[Sample]:
    return _known(active.audit.differences if active.audit else None)


@_export("audit_age_seconds", Kind.GAUGE, "How long ago the active generation was audited; absent before the first.")
def _audit_age(figures: Figures) -> list[Sample]:
    audit = figures.active.audit if figures.active else None
    return _known((figures.now - audit.at).total_seconds() if audit else None)


@_export("swaps_total", Kind.COUNTER, "Requests by what became of them, since the first start.")
def _swaps(figures: Figures) -> list[Sample]:
    counted = Counter(entry.event for entry in figures.ledger.outcomes.values())
    return [Sample(counted[outcome], {"outcome": outcome.lower()}) for outcome in sorted(SETTLING)]


@_export("swaps_open", Kind.GAUGE, "Requests that are accepted and not settled: swaps and backfills under way.")
def _swaps_open(figures: Figures) -> list[Sample]:
    ledger = figures.ledger
    return _known(len(ledger.open_requests) + sum(ledger.is_open(snapshot) for snapshot in ledger.snapshots.values()))


@_export("last_swap_seconds", Kind.GAUGE, "From the request to the flip of the last swap that was applied.")
def _last_swap(figures: Figures) -> list[Sample]:
    flips = figures.ledger.flips
    request = figures.ledger.find(flips[-1].swapId) if flips else None
    return _known((flips[-1].at - request.at).total_seconds() if request else None)


@_export("generations", Kind.GAUGE, "Generations by state.")
def _generations(figures: Figures) -> list[Sample]:
    active = figures.active.generation if figures.active else None
    counted = Counter(state_of(figures.ledger, number, active) for number in figures.ledger.generations)
    return [Sample(counted[state], {"state": state}) for state in GenerationState]


@_export("incidents_open", Kind.GAUGE, "Whether a health check has an open incident, by its level.")
def _incidents(figures: Figures) -> list[Sample]:
    levels = (Level.MENDING, Level.PERSON)
    found = {check: incident.level for check, incident in figures.incidents.items()}
    return [
        Sample(int(found.get(check) is level), {"check": check, "level": level.replace(" ", "_")})
        for check in sorted({*CHECKS, *found})
        for level in levels
    ]


def state_of(ledger: Ledger, generation: int, active: int | None) -> GenerationState:
    """Where a generation stands; the status row, not the history, says which one is active."""
    command, life = ledger.command_of(generation), ledger.last_life(generation)
    if generation == active:
        return GenerationState.ACTIVE
    if ledger.is_removed(generation):
        return GenerationState.REMOVED
    if life is not None and life.event in (Event.APPLIED, Event.LINGERING):
        return GenerationState.LINGERING
    if command is not None and ledger.is_open(command):
        return GenerationState.BUILDING
    is_whole = ledger.was_active(generation) or ledger.is_finished(generation)
    return GenerationState.RETIRED if is_whole else GenerationState.FAILED
