"""The tasks of a backfill: the job that writes the snapshot, its publication, and what became of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from switchyard.airflow.connection import read_kafka
from switchyard.airflow.control_operators import CommandOperator
from switchyard.airflow.defaults import name_user
from switchyard.airflow.generation_operator import GenerationSubmitOperator
from switchyard.airflow.generation_tasks import FAILED_STATES
from switchyard.airflow.start_driver import STOPPED_EXIT_CODE
from switchyard.drivers.submission import backfill_arguments
from switchyard.errors import FencedError
from switchyard.settings import Settings, load_settings
from switchyard.swap.history import Event

if TYPE_CHECKING:
    from switchyard.swap.history import Request
    from switchyard.swap.reconcile import Run

BUILD_TASK, PUBLISH_TASK = "build", "publish"


class BackfillOperator(GenerationSubmitOperator):
    """Take the order of the form and run the job for it. A retry goes on where the last try ended."""

    ui_color = "#f3e6d0"
    # A job that ends by itself is watched from here, whatever the connection says.
    forced_deploy_mode = "client"

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        if published := context["params"].get("generation"):
            self.log.info("Generation %s is to be published; there is nothing to write.", published)
            return {"generation": published}
        settings = load_settings()
        kafka = read_kafka(self.kafka_conn_id)
        snapshot = order_from_run(settings, kafka, context)
        self.log.info("Writing generation %s: %s, from %s", snapshot.generation, snapshot.target, snapshot.start)
        submit = self.read_submit(settings)
        with self._kafka_properties(settings, snapshot.generation, kafka) as properties:
            arguments = backfill_arguments(snapshot.generation, properties)
            driver = self.prepare_driver(settings, submit, snapshot.generation, arguments)
            failure = driver.run()
        if driver.exit_code == STOPPED_EXIT_CODE:
            self._go_on_later()
        if driver.exit_code == FencedError.exit_code:
            raise AirflowSkipException("A newer attempt has taken over, or the backfill was given up.")
        built = check_snapshot(settings, snapshot)
        if failure is not None:
            raise failure
        return built


def order_from_run(settings: Settings, kafka: Mapping[str, str], context: Context) -> Request:
    from switchyard.kafka.topics import TopicReader
    from switchyard.swap.backfills import BackfillHandler, backfill_id

    swap_id = backfill_id(context["dag_run"].run_id)
    with TopicReader(kafka) as reader:
        answer = BackfillHandler(settings, reader).order(context["params"], swap_id, name_user(context))
    if answer.outcome is not None and answer.outcome.event in (Event.REJECTED, Event.FAILED):
        raise AirflowFailException(f"{answer.outcome.detail}. To try again, trigger a new run.")
    if answer.request is None:
        raise AirflowFailException(f"{answer.swapId} was not accepted")
    return answer.request


def check_snapshot(settings: Settings, snapshot: Request) -> dict[str, Any]:
    """Return what the job has written. A backfill that has failed is not tried again: its rows are gone."""
    from switchyard.swap.log_messages import open_history
    from switchyard.tables.progress import newest_progress

    outcome = open_history(settings.layout).ledger().outcomes.get(snapshot.swapId)
    if outcome is not None and outcome.event is Event.FAILED:
        raise AirflowFailException(outcome.detail)
    progress = newest_progress(settings.layout, snapshot.generation)
    if outcome is None or progress is None:
        return {"generation": snapshot.generation, "built": False}
    return {
        "generation": snapshot.generation,
        "built": True,
        "records": progress.inputRows,
        "recordsPerSecond": round(progress.rowsPerSecond, 1),
        "rejected": progress.rejectedRows,
        "detail": outcome.detail,
    }


class PublishOperator(CommandOperator):
    """Make the finished snapshot the active generation, if the form says so."""

    def work(self, settings: Settings, context: Context) -> tuple[dict[str, Any], Run | None]:
        from switchyard.kafka.topics import TopicReader
        from switchyard.swap.backfills import BackfillHandler, publish_id

        swap_id, params = publish_id(context["dag_run"].run_id), context["params"]
        if not params.get("publish") and not params.get("generation"):
            raise AirflowSkipException(
                "The form did not ask for it. A run with this generation in its form publishes it."
            )
        generation = int(context["ti"].xcom_pull(task_ids=BUILD_TASK)["generation"])
        with TopicReader(read_kafka()) as reader:
            handler = BackfillHandler(settings, reader)
            answer = handler.wait_for_flip(handler.publish(generation, swap_id, name_user(context)))
        outcome = answer.outcome
        if outcome is None or outcome.event in (Event.REJECTED, Event.FAILED):
            raise AirflowFailException(outcome.detail if outcome else f"{answer.swapId} was not accepted")
        if outcome.event is Event.SUPERSEDED:
            raise AirflowSkipException(outcome.detail)
        return {answer.swapId: str(outcome.event)}, None


def close_from_run(context: Context) -> dict[str, Any]:
    """Report what became of it. A backfill whose job has given up has failed, and what it wrote is removed."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from switchyard.swap.backfills import backfill_id, explain_end, publish_id, settle_snapshot
    from switchyard.swap.log_messages import open_history

    run, settings = context["dag_run"], load_settings()
    tasks = [BUILD_TASK, PUBLISH_TASK]
    states = RuntimeTaskInstance.get_task_states(dag_id=run.dag_id, task_ids=tasks, run_ids=[run.run_id])[run.run_id]
    history = open_history(settings.layout)
    snapshot = history.ledger().find_command(backfill_id(run.run_id))
    if snapshot is not None and history.ledger().is_open(snapshot):
        reason = explain_end(settings.layout, snapshot, str(states.get(BUILD_TASK)))
        settle_snapshot(settings, history, snapshot, Event.FAILED, reason)
    outcomes = history.ledger().outcomes
    named = {BUILD_TASK: backfill_id(run.run_id), PUBLISH_TASK: publish_id(run.run_id)}
    found = {task: str(outcomes[swap_id].event) for task, swap_id in named.items() if swap_id in outcomes}
    failed = [task for task in tasks if str(states.get(task)) in FAILED_STATES]
    if failed:
        outcome = outcomes.get(named[failed[0]])
        raise AirflowFailException(outcome.detail if outcome else f"the task {failed[0]} has failed")
    return {**found, "generation": snapshot.generation if snapshot else context["params"].get("generation")}
