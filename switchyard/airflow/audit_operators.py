"""The tasks of the audit DAG: the Spark job that compares, and the two checks that need no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from switchyard.airflow.batch_jobs import BatchJobOperator
from switchyard.airflow.connection import read_control_kafka, read_kafka
from switchyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from switchyard.health.accounting import AccountingResult


class AuditJobOperator(BatchJobOperator):
    """Recompute the join of the active generation, or of the one that is asked for, and compare."""

    def __init__(self, **options: Any) -> None:
        arguments = ["--generation", "{{ params.generation or 0 }}"]
        super().__init__(job="audit_generation.py", job_arguments=arguments, **options)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        from switchyard.tables.status import read_status

        if not context["params"]["generation"] and read_status(load_settings().layout) is None:
            raise AirflowSkipException("no generation is active yet, so there is nothing to audit")
        return super().execute(context)

    def describe_failure(self, result: dict[str, Any]) -> str:
        return (
            f"generation {result['generation']}: {result['missing']} rows of {result['rowsCompared']} are missing, "
            f"{result['extra']} are too many, {result['unaccounted']} records are not stored exactly once; "
            f"positions of the first rows: {result['samples']}"
        )


class AccountOperator(BaseOperator):
    """Fail with the first positions when something is not accounted for."""

    ui_color = "#e3f1e3"

    def execute(self, context: Context) -> str:
        finding = self.account(load_settings())
        if not finding.is_clean:
            raise AirflowFailException(finding.text)
        self.log.info("%s", finding.text)
        return finding.text

    def account(self, settings: Settings) -> AccountingResult:
        raise NotImplementedError


class RecordsOperator(AccountOperator):
    def account(self, settings: Settings) -> AccountingResult:
        # Here and below: imported when the task runs, not when a DAG is parsed, as delta-rs does not survive a fork.
        from switchyard.health.accounting import account_for_records

        return account_for_records(settings, read_kafka())


class CommandsOperator(AccountOperator):
    def account(self, settings: Settings) -> AccountingResult:
        from switchyard.health.accounting import account_for_commands

        return account_for_commands(settings, read_control_kafka())
