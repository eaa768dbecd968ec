"""Collect the metrics from the tables that the page follows anyway: no broker, no Spark, no whole table."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from switchyard import __version__
from switchyard.health.audits import newest_audit
from switchyard.health.checks import LastAudit
from switchyard.health.incident_table import incident_of
from switchyard.health.incidents import Incident, open_incidents
from switchyard.health.metrics import ActiveGeneration, MetricInputs, TableSize, measure
from switchyard.health.read_model import ReadModel
from switchyard.offsets import Offsets, from_json
from switchyard.policies import Target
from switchyard.swap.generations import load_spec
from switchyard.tables.live import Files, Moment
from switchyard.tables.progress import Progress
from switchyard.tables.stable_names import ACTIVE_NAMES
from switchyard.tables.status import Status

BATCH_WINDOW = timedelta(minutes=1)


class MetricsCollector(Collector):
    """Shared by all requests of a process."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._incidents: tuple[int, Mapping[str, Incident]] = (-1, {})
        self._starts: dict[int, Offsets] = {}

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            return measure(self._read(datetime.now(UTC)))

    def _read(self, now: datetime) -> MetricInputs:
        moment = self._model.live.moment()
        active = self._read_active(moment.status, moment) if moment.status else None
        return MetricInputs(now, __version__, self._model.ledger(), self._open_incidents(), active)

    def _read_active(self, status: Status, moment: Moment) -> ActiveGeneration:
        shown, progress = self._model.describe(moment), moment.progress
        return ActiveGeneration(
            generation=status.generation,
            epoch=status.epoch,
            target=Target(status.usersTopic, status.accountsTopic, status.joinType),
            is_healthy=shown["healthy"],
            records_per_second=shown["rowsPerSecond"],
            heartbeat_age_seconds=None if shown["snapshot"] else shown["heartbeatAgeSeconds"],
            attempt=shown["attempt"],
            batch_id=shown["batchId"],
            lag=shown["lag"],
            start=self._start_of(status.generation),
            position=from_json(progress.endOffsets) if progress else {},
            batch_seconds=self._batch_seconds(progress) if progress else (),
            audit=self._last_audit(status.generation),
            tables={table: self._size_of(name) for name, table in ACTIVE_NAMES.items()},
        )

    def _start_of(self, generation: int) -> Offsets:
        # Fixed for the life of a generation, so read once.
        if generation not in self._starts:
            spec = load_spec(self._model.settings.layout, generation)
            self._starts = {generation: spec.startOffsets} if spec else {}
        return self._starts.get(generation, {})

    def _batch_seconds(self, newest: Progress) -> list[float]:
        rows = self._model.recent_progress(newest.generation)
        batches = [row for row in rows if row["startOffsets"] is not None]
        since = newest.at - BATCH_WINDOW
        shown = [row for row in batches[:-1] if row["at"] >= since] + batches[-1:]
        return [row["batchMs"] / 1000 for row in shown]

    def _last_audit(self, generation: int) -> LastAudit | None:
        rows = self._model.rows("audits").rows
        return newest_audit(rows.filter(pc.equal(rows["generation"], generation)).to_pylist())

    def _open_incidents(self) -> Mapping[str, Incident]:
        found = self._model.rows("incidents")
        if self._incidents[0] != found.version:
            self._incidents = (found.version, open_incidents(map(incident_of, found.rows.to_pylist())))
        return self._incidents[1]

    def _size_of(self, name: str) -> TableSize:
        found = self._model.live.read(name)
        if not isinstance(found, Files):
            raise TypeError(f"{name} is not a big table")
        rows = [file.rows for file in found.files]
        known = [count for count in rows if count is not None]
        return TableSize(len(rows), sum(known) if len(known) == len(rows) else None)
