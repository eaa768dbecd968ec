"""Every verdict, and how a silent stream is brought back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from switchyard.drivers.running_drivers import DriverProcess
from switchyard.health.checks import (
    CHECKS,
    Disk,
    HealthInputs,
    Heartbeat,
    LastAudit,
    Level,
    Repair,
    choose_repair,
    find_orphans,
)
from switchyard.settings import Settings
from switchyard.swap.history import Event, Ledger, StatusRow
from tests.unit.health.health_inputs import ACTIVE, FIRST, LIMITS, ago, entry, heartbeat, inputs


def level(check: str, seen: HealthInputs) -> Level:
    verdict = CHECKS[check](seen, LIMITS)
    assert verdict.check == check
    assert verdict.text
    return verdict.level


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1, Level.OK), (15, Level.OK), (16, Level.WARNING), (46, Level.REPAIRING), (301, Level.PERSON)],
)
def test_a_silent_generation_is_noticed_repaired_and_then_handed_to_a_person(seconds: float, expected: Level) -> None:
    assert level("heartbeat", inputs(heartbeat(seconds))) is expected


def test_a_generation_that_never_reported_is_as_old_as_its_flip() -> None:
    fresh = [entry("first", Event.REQUESTED, 1, 60), entry("first", Event.APPLIED, 1, 5)]
    assert level("heartbeat", inputs(entries=fresh)) is Level.OK
    assert level("heartbeat", inputs()) is Level.PERSON


def test_without_an_active_generation_the_first_swap_is_waited_for_but_not_for_ever() -> None:
    nothing = StatusRow()
    assert level("heartbeat", inputs(entries=[], status_row=nothing)) is Level.WARNING
    pending = [entry("first", Event.REQUESTED, 1, 60)]
    assert level("heartbeat", inputs(entries=pending, status_row=nothing)) is Level.WARNING
    failed = [*pending, entry("first", Event.FAILED, 1, 50)]
    assert level("heartbeat", inputs(entries=failed, status_row=nothing)) is Level.REPAIRING
    late = [entry("first", Event.REQUESTED, 1, 400)]
    assert level("heartbeat", inputs(entries=late, status_row=nothing)) is Level.PERSON


def test_an_audit_with_differences_needs_a_person() -> None:
    assert level("audit", inputs()) is Level.OK
    assert level("audit", replace(inputs(), audit=LastAudit(ago(60), 1, 0))) is Level.OK
    assert level("audit", replace(inputs(), audit=LastAudit(ago(60), 1, 2))) is Level.PERSON


SNAPSHOT = [
    entry("backfill-a", Event.REQUESTED, 1, 4000),
    entry("backfill-a", Event.PLANNED, 1, 3900),
    entry("publish-a", Event.REQUESTED, 1, 3700),
    entry("publish-a", Event.APPLIED, 1, 3600),
]


def test_a_snapshot_is_healthy_without_a_driver_however_old_its_report_is() -> None:
    seen = inputs(heartbeat(3900, lag=None, is_batch=True), entries=SNAPSHOT)
    assert {check: level(check, seen) for check in CHECKS} == dict.fromkeys(CHECKS, Level.OK)
    assert choose_repair(seen, LIMITS, None) is Repair.NONE
    assert choose_repair(seen, LIMITS, "failed") is Repair.NONE


def test_the_job_of_a_backfill_is_no_orphan() -> None:
    pending = [*FIRST, entry("backfill-b", Event.REQUESTED, 2, 3000)]
    jobs = [DriverProcess(7, 2, timedelta(hours=1))]
    assert find_orphans(replace(inputs(entries=pending), drivers=jobs), LIMITS) == []
    failed = [*pending, entry("backfill-b", Event.FAILED, 2, 600)]
    assert find_orphans(replace(inputs(entries=failed), drivers=jobs), LIMITS) == jobs


def waiting(seconds: int, lag: int | None, **fields: float) -> list[Heartbeat]:
    """A batch, and since then heartbeats only."""
    heartbeats = [heartbeat(at, lag=lag, is_batch=False, input_rows=0) for at in range(seconds, -1, -5)]
    return [heartbeat(seconds + 5, lag=lag, **fields), *heartbeats]


def test_a_driver_that_lives_and_commits_nothing_while_records_wait_is_stuck() -> None:
    assert level("progress", inputs(*waiting(150, lag=500))) is Level.REPAIRING
    assert level("progress", inputs(*waiting(100, lag=500))) is Level.OK
    assert level("progress", inputs(*waiting(150, lag=0))) is Level.OK
    assert level("progress", inputs(*waiting(150, lag=None))) is Level.OK


def test_a_generation_with_long_batches_is_not_stuck_in_one() -> None:
    assert level("progress", inputs(*waiting(150, lag=500, batch_seconds=40))) is Level.OK
    assert level("progress", inputs(*waiting(210, lag=500, batch_seconds=40))) is Level.REPAIRING


def still(seconds: float, **fields: object) -> HealthInputs:
    """A driver that has just reported, and that nothing has moved for so long."""
    return inputs(replace(heartbeat(1, lag=500, is_batch=False), moved_at=ago(1 + seconds), **fields))  # type: ignore[arg-type]


def test_rows_that_do_not_move_are_unhealthy_long_before_the_driver_is_ended() -> None:
    assert level("progress", still(20)) is Level.OK
    assert level("progress", still(21)) is Level.REPAIRING
    assert level("progress", still(21, lag=0)) is Level.OK
    assert level("progress", still(21, lag=None)) is Level.OK
    assert choose_repair(replace(still(120), drivers=drivers((1, 900))), LIMITS, "running") is Repair.NONE
    assert choose_repair(replace(still(121), drivers=drivers((1, 900))), LIMITS, "running") is Repair.END_DRIVER


def test_with_the_default_settings_the_verdict_comes_within_half_a_minute() -> None:
    """A driver looks every two seconds, and what it finds is in `progress` with the next heartbeat at the latest."""
    settings = Settings()
    assert settings.limits.standstill.total_seconds() + 2 + settings.heartbeat_seconds <= 30
    slow = Settings(trigger_seconds=60)
    assert slow.limits.standstill == settings.limits.standstill + timedelta(seconds=59), "as long as a batch may wait"


def test_a_driver_without_executors_is_unhealthy_even_if_nothing_waits() -> None:
    assert level("progress", still(20, lag=0, executors=0)) is Level.OK
    assert level("progress", still(21, lag=0, executors=0)) is Level.REPAIRING
    assert "no executors" in CHECKS["progress"](still(21, executors=0), LIMITS).text
    assert level("progress", still(21, lag=0, executors=2)) is Level.OK


def test_a_batch_that_takes_minutes_is_healthy_while_its_tasks_move() -> None:
    """No batch for long, by the rows; but the driver tells that its work has moved."""
    *earlier, last = waiting(170, lag=500)
    seen = inputs(*earlier, replace(last, moved_at=ago(12)))
    assert level("progress", seen) is Level.OK
    assert choose_repair(replace(seen, drivers=drivers((1, 900))), LIMITS, "running") is Repair.NONE


def lags(*values: int | None, rows: int = 100) -> HealthInputs:
    return inputs(*(heartbeat(len(values) - at, lag=lag, input_rows=rows) for at, lag in enumerate(values)))


def test_a_lag_that_grows_is_told_and_one_that_cannot_be_caught_up_needs_a_person() -> None:
    assert level("lag", lags(0, 5, 3, 0, 2, 9, 1)) is Level.OK
    assert level("lag", lags(90_000, 80_000, 60_000, 40_000, 20_000, 9_000)) is Level.OK
    growing = (1_000, 1_500, 2_000, 4_000, 6_000, 9_000)
    assert level("lag", lags(*growing, rows=3_000)) is Level.WARNING
    assert level("lag", lags(*growing, rows=10)) is Level.PERSON
    assert level("lag", lags(*growing, rows=0)) is Level.PERSON
    assert level("lag", lags(None, None)) is Level.WARNING
    assert level("lag", inputs()) is Level.OK


@pytest.mark.parametrize(
    ("rejected", "expected"), [(0, Level.OK), (19, Level.OK), (20, Level.WARNING), (50, Level.PERSON)]
)
def test_rejects_are_judged_by_their_share(rejected: int, expected: Level) -> None:
    assert level("rejects", inputs(heartbeat(1, rejected_rows=rejected))) is expected


def test_a_broker_that_does_not_answer_needs_a_person() -> None:
    assert level("broker", inputs()) is Level.OK
    assert level("broker", replace(inputs(), broker_error="it is down")) is Level.PERSON


@pytest.mark.parametrize(("free", "expected"), [(0.5, Level.PERSON), (1.5, Level.WARNING), (9, Level.OK)])
def test_the_fullest_disk_counts(free: float, expected: Level) -> None:
    disks = [Disk("tables", int(free * 2**30), 2**40), Disk("home", 2**39, 2**40)]
    assert level("disk", replace(inputs(), disks=disks)) is expected
    assert level("disk", inputs()) is Level.OK


@pytest.mark.parametrize(("late", "expected"), [(-5, Level.OK), (5, Level.REPAIRING), (301, Level.PERSON)])
def test_a_swap_past_its_deadline_is_settled_or_needs_a_person(late: float, expected: Level) -> None:
    asked = entry("second", Event.REQUESTED, 2, 500, deadline=ago(late))
    assert level("swap", inputs(entries=[*FIRST, asked])) is expected
    assert level("swap", inputs()) is Level.OK


RETIRED = [
    entry("second", Event.REQUESTED, 2, 900),
    entry("second", Event.APPLIED, 2, 800),
    entry("first", Event.LINGERING, 1, 799),
    entry("first", Event.RETIRED, 1, 700),
]
SECOND = replace(ACTIVE, generation=2, flipped=2)


def drivers(*ages: tuple[int, float]) -> list[DriverProcess]:
    found = enumerate(ages)
    return [DriverProcess(100 + number, generation, timedelta(seconds=age)) for number, (generation, age) in found]


def test_a_driver_of_a_generation_that_is_over_is_an_orphan_once_it_had_time_to_end() -> None:
    seen = inputs(entries=[*FIRST, *RETIRED], status_row=SECOND)
    seen = replace(seen, drivers=drivers((1, 3000), (2, 900), (1, 10)))
    assert [driver.session for driver in find_orphans(seen, LIMITS)] == [100]
    assert level("drivers", seen) is Level.REPAIRING
    just_now = [*FIRST, *RETIRED[:-1], entry("first", Event.RETIRED, 1, 20)]
    assert find_orphans(replace(seen, ledger=Ledger.of(just_now)), LIMITS) == []


@pytest.mark.parametrize(
    ("seconds", "ages", "task_state", "repair"),
    [
        (5, [(1, 900)], "running", Repair.NONE),
        (60, [(1, 900)], "running", Repair.END_DRIVER),
        (60, [(1, 900)], None, Repair.END_DRIVER),
        (60, [(1, 30)], "running", Repair.WAIT),
        (60, [], "up_for_retry", Repair.WAIT),
        (60, [(2, 900)], "running", Repair.WAIT),
        (60, [], "failed", Repair.START_RUN),
        (60, [], None, Repair.START_RUN),
        (60, [], "success", Repair.ASK_PERSON),
    ],
)
def test_a_silent_stream_is_brought_back_by_what_can_do_it(
    seconds: float, ages: list[tuple[int, float]], task_state: str | None, repair: Repair
) -> None:
    seen = replace(inputs(heartbeat(seconds)), drivers=drivers(*ages))
    assert choose_repair(seen, LIMITS, task_state) is repair


def test_a_stuck_driver_is_ended_though_it_reports() -> None:
    seen = replace(inputs(*waiting(150, lag=500)), drivers=drivers((1, 900)))
    assert choose_repair(seen, LIMITS, "running") is Repair.END_DRIVER
