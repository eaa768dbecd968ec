"""The tasks that take commands and start the run of the generation that follows from them, in one task each.

Airflow starts the run after `execute` has ended. If the task dies in between, the next round finds a request without a
driver and starts its run. The run id follows from the request, so that it is started once.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import AirflowFailException, DagRunTriggerException

from switchyard.airflow.connection import read_control_kafka, read_kafka
from switchyard.airflow.defaults import GENERATION_DAG, SWAPS, SWAPS_ASSET, name_user
from switchyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from switchyard.swap.reconcile import Run

RUN_ID_KEY = "trigger_run_id"


class StartedRunLink(BaseOperatorLink):
    """A link from the command to the run that it started, if there is one."""

    name = "Started generation"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        from airflow.sdk.bases.xcom import BaseXCom

        run_id = BaseXCom.get_value(ti_key=ti_key, key=RUN_ID_KEY)
        return run_url(run_id) if run_id else ""


def run_url(run_id: str) -> str:
    from airflow.utils.helpers import build_airflow_dagrun_url

    return str(build_airflow_dagrun_url(dag_id=GENERATION_DAG, run_id=run_id))


class CommandOperator(BaseOperator):
    """Do the work, report what was settled as an asset event, and start the run that is needed now, if any."""

    operator_extra_links = [StartedRunLink()]  # noqa: RUF012 - the type of the base class
    ui_color = "#d9e2f3"

    def __init__(self, **options: Any) -> None:
        super().__init__(outlets=[SWAPS], **options)

    def execute(self, context: Context) -> dict[str, Any]:
        settings = load_settings()
        settled, run = self.work(settings, context)
        if run is None and settings.spare:
            from switchyard.airflow.spare_orders import find_unowned

            run = find_unowned(settings)
        if run is not None and context["ti"].get_dr_count(dag_id=GENERATION_DAG, run_ids=[run.run_id]):
            self.log.info("Run %s is there already; its driver is on its way.", run.run_id)
            run = None
        if run is not None:
            settled = settled | {"run": run.run_id, "generation": run.conf["generation"]}
        if settled:
            self.log.info("Settled or started: %s", settled)
            context["outlet_events"][SWAPS].add(SWAPS_ASSET, extra=settled)
        if run is not None:
            self._start(settings, run, context)
        return settled

    def _start(self, settings: Settings, run: Run, context: Context) -> None:
        if settings.spare:
            from switchyard.airflow.spare_orders import give_early

            # The spare driver begins at once; the run that is started now adopts it.
            if give_early(settings, read_kafka(), run):
                self.log.info("The spare driver works for generation %s already.", run.conf["generation"])
        context["ti"].xcom_push(key=RUN_ID_KEY, value=run.run_id)
        context["ti"].xcom_push(key=StartedRunLink().xcom_key, value=run_url(run.run_id))
        # What TriggerDagRunOperator raises; importing that operator would make each parse half a second slower.
        raise DagRunTriggerException(
            trigger_dag_id=GENERATION_DAG,
            dag_run_id=run.run_id,
            conf=dict(run.conf),
            note=run.note,
            reset_dag_run=False,
            skip_when_already_exists=True,
            wait_for_completion=False,
            allowed_states=[],
            failed_states=[],
            poke_interval=60,
            deferrable=False,
        )

    def work(self, settings: Settings, context: Context) -> tuple[dict[str, Any], Run | None]:
        """Return what was settled, by swap id, and the run to start."""
        raise NotImplementedError


class ControlOperator(CommandOperator):
    """Do one round: read the control topic to its end and do what is due."""

    def work(self, settings: Settings, context: Context) -> tuple[dict[str, Any], Run | None]:
        from switchyard.swap.control_loop import logging_failures, run_round

        with logging_failures(settings.layout):
            done = run_round(settings, read_kafka(), read_control_kafka())
        return find_taken(context) | done.settled, done.run


def find_taken(context: Context) -> dict[str, str]:
    """Return what the watcher took before it started this run, by swap id."""
    events = chain.from_iterable((context.get("triggering_asset_events") or {}).values())
    payloads = [(event.extra or {}).get("payload") or {} for event in events]
    return {swap_id: outcome for payload in payloads for swap_id, outcome in payload.get("settled", {}).items()}


class RollbackOperator(CommandOperator):
    """Go back to the previous generation."""

    def work(self, settings: Settings, context: Context) -> tuple[dict[str, Any], Run | None]:
        from switchyard.kafka.topics import TopicReader
        from switchyard.swap.commands import CommandHandler
        from switchyard.swap.history import ROLLBACK_PREFIX, Event

        run_id = context["dag_run"].run_id
        with TopicReader(read_kafka()) as reader:
            handler = CommandHandler(settings, reader)
            answer = handler.roll_back(f"{ROLLBACK_PREFIX}{run_id}", name_user(context))
            if answer.outcome is not None and answer.outcome.event is Event.REJECTED:
                raise AirflowFailException(answer.outcome.detail)
            return {answer.swapId: answer.document()["outcome"]}, handler.next_run()
