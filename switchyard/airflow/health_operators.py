"""The task of the health DAG: all checks, the repair, and the report to people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from switchyard.airflow.connection import read_kafka
from switchyard.airflow.control_operators import CommandOperator
from switchyard.airflow.defaults import GENERATION_DAG
from switchyard.settings import Settings

if TYPE_CHECKING:
    from switchyard.health.checks import Verdict
    from switchyard.swap.reconcile import Run


class HealthOperator(CommandOperator):
    """Judge, repair, report each incident when it begins and when it is over; fail when a person is needed."""

    ui_color = "#e3f1e3"

    def work(self, settings: Settings, context: Context) -> tuple[dict[str, Any], Run | None]:
        from switchyard.airflow.generation_tasks import stream_state
        from switchyard.health.checks import Level
        from switchyard.health.healing import heal
        from switchyard.health.inputs import run_checks
        from switchyard.wording import as_table

        verdicts = run_checks(settings, read_kafka())
        healing = heal(settings, lambda run_id: stream_state(GENERATION_DAG, run_id))
        verdicts.append(healing.verdict)
        table = as_table([(str(verdict.level), verdict.check, verdict.text) for verdict in verdicts])
        self.log.info("Verdicts:\n%s", table)
        self._report(settings, verdicts, context)
        needed = [f"{verdict.check}: {verdict.text}" for verdict in verdicts if verdict.level is Level.PERSON]
        # For Airflow a task that starts a run has succeeded. What is left for a person shows in the next minute.
        if needed and healing.run is None:
            raise AirflowFailException("; ".join(needed))
        return {"healed": healing.done} if healing.done else {}, healing.run

    def _report(self, settings: Settings, verdicts: list[Verdict], context: Context) -> None:
        from switchyard.airflow.notify import IncidentNotifier
        from switchyard.health.incident_table import keep_incidents, read_incidents
        from switchyard.health.incidents import find_news
        from switchyard.tables.logs import write_log

        news = find_news(read_incidents(settings.layout), verdicts, datetime.now(UTC))
        if news:
            IncidentNotifier(news)(context)
            keep_incidents(settings.layout, news)
        for incident in news:
            write_log(settings.layout, f"health: {incident.sentence}", level=incident.log_level)
