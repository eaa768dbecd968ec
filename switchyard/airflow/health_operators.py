"""The tasks of the health DAG: the checks, the repair, and the report to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from switchyard.airflow.connection import read_kafka
from switchyard.airflow.control_operators import CommandOperator
from switchyard.airflow.defaults import GENERATION_DAG
from switchyard.health.checks import Level, Verdict
from switchyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from switchyard.swap.reconcile import Run

VERDICT_KEY = "verdict"


def push_verdict(context: Context, verdict: Verdict) -> None:
    context["ti"].xcom_push(key=VERDICT_KEY, value=[str(verdict.level), verdict.text])


class CheckOperator(BaseOperator):
    """One check. It fails only when a person is needed."""

    ui_color = "#e3f1e3"

    def __init__(self, *, check: str, **options: Any) -> None:
        super().__init__(task_id=check, retries=0, **options)
        self.check = check

    def execute(self, context: Context) -> str:
        from switchyard.health.inputs import run_check

        verdict = run_check(load_settings(), read_kafka(), self.check)
        push_verdict(context, verdict)
        if verdict.level is Level.PERSON:
            raise AirflowFailException(verdict.text)
        self.log.info("%s: %s", verdict.level, verdict.text)
        return verdict.text


class HealOperator(CommandOperator):
    """Settles what is due and restarts a stream that is dead or hangs."""

    def work(self, settings: Settings, kafka: Mapping[str, str], context: Context) -> tuple[dict[str, Any], Run | None]:
        from switchyard.airflow.generation_tasks import stream_state
        from switchyard.health.healing import heal

        healing = heal(settings, lambda run_id: stream_state(GENERATION_DAG, run_id))
        for line in healing.done:
            self.log.info("%s", line)
        push_verdict(context, healing.verdict)
        if healing.verdict.level is Level.PERSON:
            raise AirflowFailException(healing.verdict.text)
        return {"healed": healing.done} if healing.done else {}, healing.run


class ReportOperator(BaseOperator):
    """Reports each incident when it begins and when it is over; fails when a person is needed."""

    def __init__(self, *, checks: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.checks = list(checks)

    def execute(self, context: Context) -> list[str]:
        from switchyard.airflow.notify import IncidentNotifier
        from switchyard.health.incident_table import keep_incidents, read_incidents
        from switchyard.health.incidents import find_news
        from switchyard.tables.logs import tell

        layout = load_settings().layout
        verdicts = [self._verdict(context, check) for check in self.checks]
        news = find_news(read_incidents(layout), verdicts, datetime.now(UTC))
        if news:
            IncidentNotifier(news)(context)
            keep_incidents(layout, news)
        for incident in news:
            tell(layout, f"health: {incident.sentence}", level=incident.log_level)
        needed = [f"{verdict.check}: {verdict.text}" for verdict in verdicts if verdict.level is Level.PERSON]
        if needed:
            raise AirflowFailException("; ".join(needed))
        return [f"{verdict.check}: {verdict.level}, {verdict.text}" for verdict in verdicts]

    def _verdict(self, context: Context, check: str) -> Verdict:
        found = context["ti"].xcom_pull(task_ids=check, key=VERDICT_KEY)
        if found is None:
            return Verdict(check, Level.PERSON, f"the check `{check}` could not be made: read the log of its task")
        return Verdict(check, Level(found[0]), found[1])
