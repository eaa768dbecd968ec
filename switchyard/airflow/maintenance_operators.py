"""The tasks of the maintenance DAG: one for each step, and the report of what they saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from switchyard.errors import InputError
from switchyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from switchyard.upkeep.maintenance import Round


def read_round(settings: Settings, context: Context) -> Round:
    from switchyard.upkeep.maintenance import start_round

    params = context["params"]
    try:
        return start_round(settings, params["retention_hours"], params["dry_run"])
    except InputError as error:
        raise AirflowFailException(str(error)) from None


class MaintenanceOperator(BaseOperator):
    """Do one step; return what it has done, in numbers."""

    ui_color = "#e8e3f1"

    def __init__(self, *, step: str, **options: Any) -> None:
        super().__init__(task_id=step, **options)
        self.step = step

    def execute(self, context: Context) -> dict[str, Any]:
        from switchyard.upkeep.maintenance import STEPS

        settings = load_settings()
        result = STEPS[self.step](settings, read_round(settings, context))
        self.log.info("%s: %s", self.step, result)
        return result


class SavingsOperator(BaseOperator):
    """Report what the round has saved; fail when a step has failed."""

    ui_color = "#e8e3f1"

    def __init__(self, *, steps: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.steps = list(steps)

    def execute(self, context: Context) -> dict[str, Any]:
        from switchyard.upkeep.maintenance import report

        settings = load_settings()
        asked = read_round(settings, context)
        found = {step: context["ti"].xcom_pull(task_ids=step) for step in self.steps}
        failed = [step for step, result in found.items() if result is None]
        summary = report(settings, {step: result for step, result in found.items() if result}, asked.dry_run)
        if failed:
            raise AirflowFailException(f"these steps have failed, read the logs of their tasks: {', '.join(failed)}")
        return summary
