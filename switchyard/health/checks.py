"""Judge what is healthy: each check gives a verdict on what was read; `choose_repair` chooses how to repair a stream.

Pure: no I/O, and the time is handed in.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from switchyard.policies import Limits
from switchyard.swap import flip_rules, retirement_rules
from switchyard.swap.history import Ledger, StatusRow
from switchyard.wording import describe_time

if TYPE_CHECKING:
    # `switchyard status` has no use for what these import.
    from switchyard.drivers.running_drivers import DriverProcess, SpareProcess

WINDOW = timedelta(minutes=3)
"""Lag and rejects are judged over this time."""
LEAST_REJECTS = 20
GROWTH_OF_LAG = 1.5
LEAST_LAG = 1_000
SLOW_BATCHES = 5
UNDER_WAY = frozenset({"running", "queued", "scheduled", "restarting", "up_for_retry", "up_for_reschedule", "deferred"})
STOPPED_BY_HAND = frozenset({"success"})


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    REPAIRING = "mending"
    """Not healthy, and Switchyard repairs it by itself."""
    PERSON = "person needed"


@dataclass(frozen=True)
class Verdict:
    check: str
    level: Level
    text: str

    @property
    def is_incident(self) -> bool:
        return self.level in (Level.REPAIRING, Level.PERSON)


@dataclass(frozen=True)
class Heartbeat:
    """One row of `progress`."""

    at: datetime
    attempt: int
    batch_id: int
    input_rows: int
    rejected_rows: int
    lag: int | None
    batch_seconds: float
    is_batch: bool
    moved_at: datetime | None = None
    """When the driver's work last moved; None if an earlier version of Switchyard wrote the row."""
    executors: int | None = None


@dataclass(frozen=True)
class Disk:
    name: str
    free: int
    total: int


@dataclass(frozen=True)
class LastAudit:
    at: datetime
    generation: int
    differences: int
    """Rows missing or extra, and records not stored exactly once"""


@dataclass(frozen=True)
class HealthInputs:
    """What was read at one moment. A part that was not read is empty."""

    now: datetime
    ledger: Ledger
    status_row: StatusRow
    heartbeats: Sequence[Heartbeat] = ()
    """Of the active generation's newest attempt: the last rows and those of the window, oldest first."""
    broker_error: str | None = None
    disks: Sequence[Disk] = ()
    drivers: Sequence[DriverProcess] = field(default_factory=tuple)
    spares: Sequence[SpareProcess] = ()
    audit: LastAudit | None = None
    """The newest one of the active generation"""

    @property
    def silence(self) -> timedelta | None:
        """How long ago the active generation last reported, or became active by a flip."""
        signs = [heartbeat.at for heartbeat in self.heartbeats[-1:]] + [entry.at for entry in self.ledger.flips[-1:]]
        return self.now - max(signs) if signs and self.status_row.generation is not None else None

    @property
    def is_snapshot(self) -> bool:
        """Whether the active generation is a snapshot: it is finished and needs no driver."""
        return self.ledger.is_snapshot(self.status_row.generation)

    @property
    def batches(self) -> list[Heartbeat]:
        return [heartbeat for heartbeat in self.heartbeats if heartbeat.is_batch]

    @property
    def without_progress(self) -> timedelta:
        """How long the driver's work has not moved, or how long it has committed no batch while records waited."""
        if self.heartbeats and (moved_at := self.heartbeats[-1].moved_at) is not None:
            return self.heartbeats[-1].at - moved_at
        # Rows of an earlier version of Switchyard do not say when the work moved.
        waiting = []
        for heartbeat in reversed(self.heartbeats):
            if heartbeat.is_batch or not heartbeat.lag:
                break
            waiting.append(heartbeat)
        return waiting[0].at - waiting[-1].at if waiting else timedelta()


def check_heartbeat(inputs: HealthInputs, limits: Limits) -> Verdict:
    silence, generation = inputs.silence, inputs.status_row.generation
    if silence is None:
        return _judge_absence(inputs, limits)
    if inputs.is_snapshot:
        return Verdict("heartbeat", Level.OK, f"generation {generation} is a finished snapshot and needs no driver")
    name, ago = f"generation {generation}", describe_time(silence)
    if silence <= limits.stale:
        return Verdict("heartbeat", Level.OK, f"{name} reported {ago} ago")
    if silence <= limits.hung:
        return Verdict("heartbeat", Level.WARNING, f"{name} was last heard of {ago} ago")
    text = f"{name} was last heard of {ago} ago: its driver is dead or hung"
    if silence <= limits.lost:
        return Verdict("heartbeat", Level.REPAIRING, f"{text}, and is started again")
    return Verdict("heartbeat", Level.PERSON, f"{text}, and starting it again did not help: read the log of its run")


def _judge_absence(inputs: HealthInputs, limits: Limits) -> Verdict:
    request = inputs.ledger.pending
    if request is None:
        level = Level.REPAIRING if inputs.ledger.entries else Level.WARNING
        return Verdict("heartbeat", level, "no generation is active; the control DAG asks for one")
    text = f"no generation is active yet; generation {request.generation} was asked for at {request.at:%H:%M:%S}"
    # The first generation takes a while to start, which is no incident.
    is_late = inputs.now - request.at > limits.lost
    return Verdict("heartbeat", Level.PERSON if is_late else Level.WARNING, text)


def check_progress(inputs: HealthInputs, limits: Limits) -> Verdict:
    if not inputs.heartbeats:
        return Verdict("progress", Level.OK, "there is no report to judge by")
    if inputs.is_snapshot:
        return Verdict("progress", Level.OK, "a snapshot is finished")
    last = inputs.heartbeats[-1]
    if reason := _explain(inputs, stuck_after(inputs, limits) if last.moved_at is None else limits.standstill):
        return Verdict("progress", Level.REPAIRING, f"{reason}; a driver that stays like this is started again")
    if last.lag == 0:
        return Verdict("progress", Level.OK, f"batch {last.batch_id}: all is read")
    return Verdict("progress", Level.OK, f"batch {last.batch_id} is the last one")


def explain_standstill(
    lag: int | None, executors: int | None, time: timedelta, allowed: timedelta, is_awaited: bool = False
) -> str | None:
    """Say why rows do not move; None while they move, and if no records wait.

    `time` is how long nothing has moved; `executors` is None with a local master. With `is_awaited` a swap waits for
    the driver, which has work until it is ready, also if no records wait or the lag is not known.
    """
    if time <= allowed:
        return None
    if executors == 0:
        return f"the driver has had no executors for {describe_time(time)}: see that Spark's master and workers run"
    if not lag and not is_awaited:
        return None
    waiting = _describe_waiting(lag)
    return f"{waiting}, and for {describe_time(time)} no batch was committed and no task of Spark has moved"


def _describe_waiting(lag: int | None) -> str:
    if lag is None:
        return "the broker does not answer"
    return f"{lag} records wait" if lag else "the swap is not ready"


def _explain(inputs: HealthInputs, allowed: timedelta) -> str | None:
    last = inputs.heartbeats[-1]
    return explain_standstill(last.lag, last.executors, inputs.without_progress, allowed)


def is_stuck(inputs: HealthInputs, limits: Limits) -> bool:
    """Return whether a live driver has done nothing for so long that it is to be ended."""
    return bool(inputs.heartbeats) and _explain(inputs, stuck_after(inputs, limits)) is not None


def stuck_after(inputs: HealthInputs, limits: Limits) -> timedelta:
    # A generation that reads a long history has long batches.
    longest = max((heartbeat.batch_seconds for heartbeat in inputs.batches), default=0.0)
    return max(limits.stuck, timedelta(seconds=SLOW_BATCHES * longest))


def check_lag(inputs: HealthInputs, limits: Limits) -> Verdict:
    if inputs.is_snapshot:
        return Verdict("lag", Level.OK, "a snapshot has an end, and is there")
    known = [heartbeat.lag for heartbeat in inputs.heartbeats if heartbeat.lag is not None]
    if not known:
        return Verdict("lag", Level.WARNING if inputs.heartbeats else Level.OK, "the lag is not known")
    third = max(1, len(known) // 3)
    before, after = statistics.median(known[:third]), statistics.median(known[-third:])
    rate = sum(heartbeat.input_rows for heartbeat in inputs.heartbeats) / WINDOW.total_seconds()
    text = f"{known[-1]} records behind, {rate:.0f} records a second"
    if len(known) >= 6 and after > LEAST_LAG and after > GROWTH_OF_LAG * before:
        text += f", and it grows: {before:.0f} some minutes ago"
        is_hopeless = rate == 0 or after / rate > limits.lost.total_seconds()
        advice = ": give the driver more cores or memory" if is_hopeless else ""
        return Verdict("lag", Level.PERSON if is_hopeless else Level.WARNING, text + advice)
    return Verdict("lag", Level.OK, text)


def check_rejects(inputs: HealthInputs, limits: Limits) -> Verdict:
    read = sum(heartbeat.input_rows for heartbeat in inputs.heartbeats)
    rejected = sum(heartbeat.rejected_rows for heartbeat in inputs.heartbeats)
    text = f"{rejected} of {read} records of the last {describe_time(WINDOW)} were rejected"
    # A few rejects are everyday life, and of few records they are soon half.
    if rejected < LEAST_REJECTS:
        return Verdict("rejects", Level.OK, text)
    if rejected >= limits.reject_share * read:
        return Verdict(
            "rejects", Level.PERSON, f"{text}: read the reasons in the table rejects; has the schema changed?"
        )
    return Verdict("rejects", Level.WARNING, f"{text}; the table rejects has the reasons")


def check_broker(inputs: HealthInputs, limits: Limits) -> Verdict:
    if inputs.broker_error is None:
        return Verdict("broker", Level.OK, "the broker answers")
    return Verdict("broker", Level.PERSON, inputs.broker_error)


def check_disk(inputs: HealthInputs, limits: Limits) -> Verdict:
    if not inputs.disks:
        return Verdict("disk", Level.OK, "the tables are not on a disk of this machine")
    fullest = min(inputs.disks, key=lambda disk: disk.free)
    text = f"{fullest.free / 2**30:.1f} GiB of {fullest.total / 2**30:.1f} GiB are free under the {fullest.name}"
    if fullest.free < limits.least_free_bytes:
        return Verdict("disk", Level.PERSON, f"{text}: run switchyard_maintenance or make room")
    if fullest.free < 2 * limits.least_free_bytes:
        return Verdict("disk", Level.WARNING, text)
    return Verdict("disk", Level.OK, text)


def check_swap(inputs: HealthInputs, limits: Limits) -> Verdict:
    request = inputs.ledger.pending
    if request is None:
        return Verdict("swap", Level.OK, "no swap is under way")
    name = f"{request.swapId} (generation {request.generation})"
    if not flip_rules.is_overdue(request, inputs.now) or request.deadline is None:
        return Verdict("swap", Level.OK, f"{name} is under way")
    late = inputs.now - request.deadline
    text = f"{name} is {describe_time(late)} past its deadline and not settled"
    return Verdict("swap", Level.PERSON if late > limits.lost else Level.REPAIRING, text)


def check_drivers(inputs: HealthInputs, limits: Limits) -> Verdict:
    orphans, spares = find_orphans(inputs, limits), find_useless_spares(inputs, limits)
    if not orphans and not spares:
        text = f"{len({driver.generation for driver in inputs.drivers})} generations run here"
        return Verdict("drivers", Level.OK, f"{text}; {describe_spares(inputs)}" if limits.has_spare else text)
    names = [f"session {driver.session} of generation {driver.generation}" for driver in orphans]
    names += [f"session {spare.session}, a spare that hangs or is not wanted" for spare in spares]
    return Verdict(
        "drivers", Level.REPAIRING, f"nobody wants these drivers any more, they are ended: {', '.join(names)}"
    )


def check_audit(inputs: HealthInputs, limits: Limits) -> Verdict:
    audit = inputs.audit
    if audit is None:
        return Verdict("audit", Level.OK, "the active generation was not audited yet")
    ago = describe_time(inputs.now - audit.at)
    if audit.differences:
        text = f"the audit of generation {audit.generation} {ago} ago found {audit.differences} differences"
        return Verdict("audit", Level.PERSON, f"{text}: read the last red run of switchyard_audit")
    return Verdict("audit", Level.OK, f"the audit of generation {audit.generation} {ago} ago was clean")


CHECKS: dict[str, Callable[[HealthInputs, Limits], Verdict]] = {
    "broker": check_broker,
    "heartbeat": check_heartbeat,
    "progress": check_progress,
    "lag": check_lag,
    "rejects": check_rejects,
    "disk": check_disk,
    "swap": check_swap,
    "drivers": check_drivers,
    "audit": check_audit,
}


def find_orphans(inputs: HealthInputs, limits: Limits) -> list[DriverProcess]:
    """Find drivers of generations that ended so long ago that the drivers should have noticed."""
    return [
        driver
        for driver in inputs.drivers
        if driver.age > limits.hung and _has_been_over(inputs, driver.generation, limits.hung)
    ]


def find_useless_spares(inputs: HealthInputs, limits: Limits) -> list[SpareProcess]:
    """Find spares that hang, in their rehearsal or while they wait; all spares if the settings want none."""
    return [spare for spare in inputs.spares if not limits.has_spare or _hangs(spare, limits)]


def _hangs(spare: SpareProcess, limits: Limits) -> bool:
    from switchyard.drivers.spares import MOST_REHEARSAL_SECONDS

    if spare.is_ready:
        return spare.silence > limits.hung
    # A rehearsal may take minutes on a busy machine, but each of its batches shows life.
    allowed = limits.starting + limits.hung
    return spare.silence > allowed or spare.age > allowed + timedelta(seconds=MOST_REHEARSAL_SECONDS)


def describe_spares(inputs: HealthInputs) -> str:
    if any(spare.is_ready for spare in inputs.spares):
        return "a spare driver is ready"
    return "a spare driver is warming up" if inputs.spares else "there is no spare driver now"


def _has_been_over(inputs: HealthInputs, generation: int, time: timedelta) -> bool:
    if generation == inputs.status_row.generation or not retirement_rules.is_over(inputs.ledger, generation):
        return False
    last = max((entry.at for entry in inputs.ledger.entries if entry.generation == generation), default=inputs.now)
    return inputs.now - last > time


class Repair(StrEnum):
    """How to repair a silent or stuck stream."""

    NONE = "none"
    WAIT = "wait"
    """Airflow starts it again already."""
    END_DRIVER = "end the driver"
    """Its task then starts the next attempt."""
    START_RUN = "start a run"
    """No task is left that would start an attempt."""
    ASK_PERSON = "ask a person"


def is_silent(inputs: HealthInputs, limits: Limits) -> bool:
    return inputs.silence is not None and inputs.silence > limits.hung


def choose_repair(inputs: HealthInputs, limits: Limits, task_state: str | None) -> Repair:
    """Choose for the active generation; `task_state` is that of the task of its driver, None without a task."""
    if inputs.is_snapshot:
        return Repair.NONE
    stands_still = is_stuck(inputs, limits)
    if not is_silent(inputs, limits) and not stands_still:
        return Repair.NONE
    own = [driver for driver in inputs.drivers if driver.generation == inputs.status_row.generation]
    # A young driver is silent because it still starts.
    if any(driver.age <= limits.starting for driver in own) and not stands_still:
        return Repair.WAIT
    if own:
        return Repair.END_DRIVER
    if task_state in UNDER_WAY:
        return Repair.WAIT
    return Repair.ASK_PERSON if task_state in STOPPED_BY_HAND else Repair.START_RUN
