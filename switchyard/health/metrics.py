"""Switchyard's own metrics: what is exported, under which names, and how each follows from what was read.

Pure: no I/O, and the time is handed in. Names and labels are a contract with dashboards and alerts;
docs/observability.md has a row for each. `EXPORTED` lists all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from switchyard.health.checks import CHECKS, LastAudit, Level
from switchyard.health.incidents import Incident
from switchyard.offsets import Offsets, count_records
from switchyard.policies import Target
from switchyard.swap.history import SETTLING, Event, Ledger

PREFIX = "switchyard_"


class GenerationState(StrEnum):
    PENDING = "building"
    ACTIVE = "active"
    LINGERING = "lingering"
    RETIRED = "retired"
    """A retired stream, or a finished snapshot that is not active: a rollback or resume can bring it back."""
    FAILED = "failed"
    """It ended before it was active."""
    REMOVED = "removed"


@dataclass(frozen=True)
class TableSize:
    files: int
    rows: int | None
    """None when the log does not know it."""


@dataclass(frozen=True)
class ActiveGeneration:
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
    """How long the batches of the last minute took, oldest first, and always the last one."""
    audit: LastAudit | None = None
    tables: Mapping[str, TableSize] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricInputs:
    now: datetime
    version: str
    ledger: Ledger = field(default_factory=Ledger)
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    """The open ones by their check."""
    active: ActiveGeneration | None = None


Samples = Iterable[tuple[Mapping[str, str], float]]
"""Labels and value of each; all samples of a metric have the same labels in the same order."""


@dataclass(frozen=True)
class ExportedMetric:
    name: str
    help: str
    read: Callable[[MetricInputs], Samples]

    @property
    def kind(self) -> str:
        # A counter never goes down while its labels stay the same.
        return "counter" if self.name.endswith("_total") else "gauge"


def measure(inputs: MetricInputs) -> Iterator[Metric]:
    for metric in EXPORTED:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        samples = list(metric.read(inputs))
        if samples:
            family = kind(metric.name, metric.help, labels=list(samples[0][0]))
            for labels, value in samples:
                family.add_metric(list(labels.values()), value)
            yield family


def _known(value: float | None, **labels: str) -> Samples:
    # No sample instead of 0 for what is not known: a dashboard then shows a gap.
    return [] if value is None else [(labels, value)]


def _active_info(active: ActiveGeneration) -> Samples:
    target = active.target
    labels = {"users_topic": target.usersTopic, "accounts_topic": target.accountsTopic, "join_type": target.joinType}
    return _known(1, generation=str(active.generation), **labels)


def _position(active: ActiveGeneration) -> Samples:
    return [
        ({"topic": topic, "partition": str(partition)}, offset)
        for topic, partitions in sorted(active.position.items())
        for partition, offset in sorted(partitions.items())
    ]


def _records_read(active: ActiveGeneration) -> Samples:
    if not active.start:
        return []
    return [
        ({"generation": str(active.generation), "topic": topic}, count_records(active.start, {topic: partitions}))
        for topic, partitions in sorted(active.position.items())
    ]


def _batches(active: ActiveGeneration) -> Samples:
    return [] if active.batch_id is None else _known(active.batch_id + 1, generation=str(active.generation))


def _table_rows(active: ActiveGeneration) -> Samples:
    return [({"table": name}, size.rows) for name, size in sorted(active.tables.items()) if size.rows is not None]


def _table_files(active: ActiveGeneration) -> Samples:
    return [({"table": name}, size.files) for name, size in sorted(active.tables.items())]


def _audit_age(inputs: MetricInputs) -> Samples:
    audit = inputs.active.audit if inputs.active else None
    return _known((inputs.now - audit.at).total_seconds() if audit else None)


def _swaps(inputs: MetricInputs) -> Samples:
    counted = Counter(entry.event for entry in inputs.ledger.outcomes.values())
    return [({"outcome": outcome.lower()}, counted[outcome]) for outcome in sorted(SETTLING)]


def _swaps_open(inputs: MetricInputs) -> Samples:
    ledger = inputs.ledger
    return _known(len(ledger.open_requests) + sum(ledger.is_open(snapshot) for snapshot in ledger.snapshots.values()))


def _last_swap(inputs: MetricInputs) -> Samples:
    flips = inputs.ledger.flips
    request = inputs.ledger.find(flips[-1].swapId) if flips else None
    return _known((flips[-1].at - request.at).total_seconds() if request else None)


def _generations(inputs: MetricInputs) -> Samples:
    active = inputs.active.generation if inputs.active else None
    counted = Counter(state_of(inputs.ledger, number, active) for number in inputs.ledger.generations)
    return [({"state": state}, counted[state]) for state in GenerationState]


def _incidents(inputs: MetricInputs) -> Samples:
    found = {check: incident.level for check, incident in inputs.incidents.items()}
    return [
        ({"check": check, "level": level.replace(" ", "_")}, int(found.get(check) is level))
        for check in sorted({*CHECKS, *found})
        for level in (Level.REPAIRING, Level.PERSON)
    ]


def state_of(ledger: Ledger, generation: int, active: int | None) -> GenerationState:
    """Return where a generation stands; `active` is the one in the status row."""
    command, life = ledger.command_of(generation), ledger.last_life(generation)
    # The history gets its APPLIED a moment after the flip of the status row.
    if generation == active:
        return GenerationState.ACTIVE
    if ledger.is_removed(generation):
        return GenerationState.REMOVED
    if life is not None and life.event in (Event.APPLIED, Event.LINGERING):
        return GenerationState.LINGERING
    if command is not None and ledger.is_open(command):
        return GenerationState.PENDING
    is_whole = ledger.was_active(generation) or ledger.is_finished(generation)
    return GenerationState.RETIRED if is_whole else GenerationState.FAILED


def _metric(name: str, text: str, read: Callable[[MetricInputs], Samples]) -> ExportedMetric:
    return ExportedMetric(PREFIX + name, text, read)


def _for_active(name: str, text: str, read: Callable[[ActiveGeneration], Samples]) -> ExportedMetric:
    """Declare a metric that only an active generation has."""
    return _metric(name, text, lambda inputs: read(inputs.active) if inputs.active else ())


EXPORTED = (
    _metric(
        "build_info",
        "Always 1; the version of Switchyard is a label.",
        lambda inputs: _known(1, version=inputs.version),
    ),
    _metric(
        "healthy",
        "Whether the active generation's rows move: 1, or 0, also when nothing is active.",
        lambda inputs: _known(int(inputs.active is not None and inputs.active.is_healthy)),
    ),
    _for_active("active_generation", "The number of the active generation.", lambda active: _known(active.generation)),
    _for_active("active_info", "Always 1; what the active generation joins is in the labels.", _active_info),
    _for_active("epoch", "The epoch of the status row: one more with each flip.", lambda active: _known(active.epoch)),
    _for_active(
        "lag_records",
        "Records in Kafka that were not read yet; absent when Kafka does not answer.",
        lambda active: _known(active.lag),
    ),
    _for_active("position_offset", "The offset that is read next, of each partition.", _position),
    _for_active("records_read_total", "Records read by the active generation, by its offsets.", _records_read),
    _for_active(
        "records_per_second",
        "Records read a second, over the 10 seconds before the last report.",
        lambda active: _known(active.records_per_second),
    ),
    _for_active("batches_total", "Micro-batches that the active generation has committed.", _batches),
    _for_active(
        "batch_seconds",
        "How long the last micro-batch took.",
        lambda active: [({}, seconds) for seconds in active.batch_seconds[-1:]],
    ),
    _for_active(
        "batch_max_seconds",
        "How long the longest micro-batch of the last minute took.",
        lambda active: _known(max(active.batch_seconds, default=None)),
    ),
    _for_active(
        "heartbeat_age_seconds",
        "How long ago the active generation reported; a snapshot does not.",
        lambda active: _known(active.heartbeat_age_seconds),
    ),
    _for_active(
        "driver_attempts_total",
        "Attempts of the active generation: one more with each driver.",
        lambda active: _known(active.attempt, generation=str(active.generation)),
    ),
    _for_active("table_rows", "Rows of the active generation in a table; of rejects, records refused.", _table_rows),
    _for_active(
        "table_files", "Files of the active generation in a table; maintenance makes them fewer.", _table_files
    ),
    _for_active(
        "audit_differences",
        "Differences that the last audit of the active generation found.",
        lambda active: _known(active.audit.differences if active.audit else None),
    ),
    _metric(
        "audit_age_seconds", "How long ago the active generation was audited; absent before the first.", _audit_age
    ),
    _metric("swaps_total", "Requests by what became of them, since the first start.", _swaps),
    _metric("swaps_open", "Requests that are accepted and not settled: swaps and backfills under way.", _swaps_open),
    _metric("last_swap_seconds", "From the request to the flip of the last swap that was applied.", _last_swap),
    _metric("generations", "Generations by state.", _generations),
    _metric("incidents_open", "Whether a health check has an open incident, by its level.", _incidents),
)
