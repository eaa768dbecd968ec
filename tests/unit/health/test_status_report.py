"""Status and incidents in real Delta tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from switchyard.health.checks import Level
from switchyard.health.incident_table import keep_incidents, read_incidents
from switchyard.health.incidents import Incident, Stage
from switchyard.health.status_report import describe_status, judge_heartbeat
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.swap import transitions
from switchyard.swap.history import Entry, Event
from switchyard.swap.history_store import HistoryStore
from switchyard.tables.progress import report
from tests.histories import make_active, progress_row
from tests.specs import TARGET, make_settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_incidents_are_kept(layout: Layout) -> None:
    incident = Incident(NOW, "disk", Stage.RAISED, Level.PERSON, "little space is left")
    assert read_incidents(layout) == []
    keep_incidents(layout, [incident])
    assert read_incidents(layout) == [incident]


def test_status_without_a_generation_is_unhealthy(layout: Layout, settings: Settings) -> None:
    assert describe_status(settings) == {"healthy": False, "reason": "no generation is active yet"}


def test_status_shows_what_lingers_and_what_is_pending(layout: Layout, settings: Settings) -> None:
    history = HistoryStore(layout)
    old = Entry("s-1", Event.REQUESTED, 1, TARGET, "latest", "test")
    for event in (Event.REQUESTED, Event.APPLIED, Event.LINGERING):
        transitions.note(history, replace(old, event=event))
    make_active(layout, 2)
    report(layout, progress_row(generation=2, at=datetime.now(UTC), lag=7))
    status = describe_status(settings)
    assert (status["healthy"], status["lag"], status["lingering"], status["swapping"]) == (True, 7, [1], None)
    transitions.note(history, replace(old, event=Event.RETIRED))
    transitions.note(history, Entry("s-3", Event.REQUESTED, 3, TARGET, "latest", "test"))
    status = describe_status(settings)
    assert (status["lingering"], status["swapping"]["generation"], status["swapping"]["swapId"]) == ([], 3, "s-3")


@pytest.mark.parametrize(
    ("average", "recent", "shown", "is_told"),
    [(None, None, None, False), (1.2, None, 1.2, False), (1.2, 1.1, 1.1, False), (20.0, 41.0, 41.0, True)],
)
def test_status_shows_rows_per_event_and_warns_when_they_grow(
    layout: Layout, average: float | None, recent: float | None, shown: float | None, is_told: bool, settings: Settings
) -> None:
    make_active(layout)
    report(layout, progress_row(at=datetime.now(UTC), rowsPerEvent=average, recentRowsPerEvent=recent))
    status = describe_status(settings)
    assert (status["rowsPerEvent"], bool(status["warnings"]), status["healthy"]) == (shown, is_told, True)


@pytest.mark.parametrize(("age", "is_healthy"), [(None, False), (1.0, True), (15.1, False)])
def test_heartbeat_verdict(age: float | None, is_healthy: bool) -> None:
    assert (judge_heartbeat(age, 15) is None) is is_healthy


@pytest.mark.parametrize(("seconds", "is_healthy"), [(5, True), (30, False), (None, True)])
def test_status_is_unhealthy_when_the_driver_reports_and_rows_do_not_move(
    layout: Layout, seconds: float | None, is_healthy: bool, settings: Settings
) -> None:
    make_active(layout)
    now = datetime.now(UTC)
    moved_at = None if seconds is None else now - timedelta(seconds=seconds)
    report(layout, progress_row(at=now, lag=7, movedAt=moved_at))
    status = describe_status(settings)
    assert status["healthy"] is is_healthy
    assert is_healthy or status["reason"].startswith("7 records wait")
    assert describe_status(make_settings(layout, trigger_seconds=60))["healthy"]
