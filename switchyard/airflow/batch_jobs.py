"""spark-submit of a batch job as an Airflow task; what the job found is the result of the task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from switchyard.airflow.spark_submit import SparkSubmit, read_submit
from switchyard.layout import PROJECT
from switchyard.settings import Settings, load_settings


class BatchJobOperator(SparkSubmitOperator):
    """Run `jobs/<job>` with `--output FILE`; the JSON it writes there is the result."""

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "job_arguments")
    ui_color = "#f3e6d0"

    def __init__(self, *, job: str, job_arguments: Sequence[str] = (), **options: Any) -> None:
        super().__init__(application=str(PROJECT / "jobs" / job), **options)
        self.job_arguments = list(job_arguments)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        settings = load_settings()
        settings.workspace.run.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="job-", dir=settings.workspace.run) as folder:
            output = Path(folder) / "result.json"
            # The attribute of the base class, which ends this spark-submit when the task is killed.
            self._hook = self.read_submit(settings).make_hook(
                f"switchyard-{Path(self.application).stem}", [*self.job_arguments, "--output", str(output)]
            )
            try:
                self._hook.submit(self.application)
            except AirflowException:
                # With a result the job has found a fault in the data; a retry would find the same.
                if output.exists():
                    raise AirflowFailException(self.describe_failure(json.loads(output.read_text()))) from None
                raise
            return dict(json.loads(output.read_text()))

    def read_submit(self, settings: Settings) -> SparkSubmit:
        # What the job finds comes back in a file, so its driver is here whatever the connection says.
        return read_submit(settings, self.conf, "client")

    def describe_failure(self, result: dict[str, Any]) -> str:
        return json.dumps(result)
