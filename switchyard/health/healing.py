"""Repair what the health checks found: settle what is due, end orphans, restart a silent stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from switchyard.deadline import Deadline
from switchyard.drivers.running_drivers import end_driver, end_spare
from switchyard.health import checks
from switchyard.health.checks import HealthInputs, Level, Repair, Verdict
from switchyard.health.inputs import add_drivers, add_heartbeats, read_inputs
from switchyard.settings import Settings
from switchyard.swap.log_messages import open_history
from switchyard.swap.reconcile import Run, reconcile, run_of_life
from switchyard.tables.logs import write_log

HEAL = "heal"
PROGRESS_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Healing:
    done: list[str]
    """What was done, in plain words."""
    run: Run | None = None
    """The Airflow run to start."""
    advice: str | None = None
    """What a person has to do."""

    @property
    def verdict(self) -> Verdict:
        if self.advice:
            return Verdict(HEAL, Level.PERSON, self.advice)
        return Verdict(HEAL, Level.WARNING if self.done else Level.OK, "; ".join(self.done) or "nothing to repair")


def heal(settings: Settings, find_task_state: Callable[[str], str | None]) -> Healing:
    """Repair what can be repaired. `find_task_state` returns, by run id, the state of the task of a driver."""
    reconcile(settings, open_history(settings.layout))
    inputs = add_drivers(add_heartbeats(read_inputs(settings), settings, {}), settings, {})
    done = [*_end_orphans(settings, inputs), *_end_useless_spares(settings, inputs)]
    generation = inputs.status_row.generation
    life = run_of_life(inputs.ledger, generation) if generation is not None else None
    if generation is None or life is None:
        return Healing(done)
    repair = checks.choose_repair(inputs, settings.limits, find_task_state(life.run_id))
    if repair is Repair.END_DRIVER and _reports_after_all(settings, inputs):
        return Healing(done)
    if repair is Repair.END_DRIVER:
        return Healing([*done, _end_hung(settings, inputs, generation)])
    if repair is Repair.START_RUN:
        run = _next_run(inputs, life)
        text = f"generation {generation} has no driver and no task that starts one: run {run.run_id} is started"
        write_log(settings.layout, text, level="WARNING", generation=generation)
        return Healing([*done, text], run)
    if repair is Repair.ASK_PERSON:
        text = f"the stream of generation {generation} was stopped by hand: clear its task `stream` to go on"
        return Healing(done, advice=text)
    return Healing(done)


def _reports_after_all(settings: Settings, inputs: HealthInputs) -> bool:
    """Wait for the next report, and return whether it came."""
    # After the wall clock was put forward, a live driver seems silent until then.
    if not checks.is_silent(inputs, settings.limits):
        return False
    wait = Deadline(2 * settings.heartbeat_seconds)
    return any(
        add_heartbeats(inputs, settings, {}).heartbeats[-1:] != inputs.heartbeats[-1:]
        for _ in wait.polls(PROGRESS_POLL_SECONDS)
    )


def _end_orphans(settings: Settings, inputs: HealthInputs) -> list[str]:
    done = []
    for driver in checks.find_orphans(inputs, settings.limits):
        end_driver(driver.session)
        text = f"a driver of generation {driver.generation}, which is over, was still there and was ended"
        write_log(settings.layout, text, level="WARNING", generation=driver.generation)
        done.append(text)
    return done


def _end_useless_spares(settings: Settings, inputs: HealthInputs) -> list[str]:
    done = []
    for spare in checks.find_useless_spares(inputs, settings.limits):
        if end_spare(settings.workspace, spare):
            text = (
                "a spare driver hung and was ended" if settings.spare else "a spare driver was there that is not wanted"
            )
            write_log(settings.layout, text, level="WARNING")
            done.append(text)
    return done


def _end_hung(settings: Settings, inputs: HealthInputs, generation: int) -> str:
    for driver in inputs.drivers:
        if driver.generation == generation:
            end_driver(driver.session)
    text = f"the driver of generation {generation} hung and was ended; its task starts the next attempt"
    write_log(settings.layout, text, level="WARNING", generation=generation)
    return text


def _next_run(inputs: HealthInputs, life: Run) -> Run:
    # Named after the attempt that is missing, so that asking twice starts one run.
    attempt = inputs.heartbeats[-1].attempt + 1 if inputs.heartbeats else 1
    return replace(life, run_id=f"{life.run_id}-attempt-{attempt}", note=f"{life.note}; started again by health")
