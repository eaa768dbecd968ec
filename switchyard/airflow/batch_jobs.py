"""spark-submit of a job that ends by itself, as an Airflow task: what it found is the task's result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from switchyard.drivers.clusters import require_provider
from switchyard.drivers.submission import bind_environment, submit_environment
from switchyard.layout import PROJECT
from switchyard.settings import Settings, load_settings

HAS_KUBERNETES = find_spec("airflow.providers.cncf") is not None


class JobSubmitHook(SparkSubmitHook):
    """The provider's hook, told how jobs are submitted here as soon as it knows its master."""

    def _resolve_connection(self) -> dict[str, Any]:
        connection: dict[str, Any] = super()._resolve_connection()
        require_provider(str(connection["master"]), HAS_KUBERNETES)
        return connection

    @property
    def master(self) -> str:
        return str(self._connection["master"])

    def apply_conf(self, conf: dict[str, str]) -> None:
        self._conf = {**conf, **self._conf}
        self._env_vars = {**bind_environment(self.master), **(self._env_vars or {})}


class BatchJobOperator(SparkSubmitOperator):
    """Runs `jobs/<job>` with `--output FILE`; the JSON it writes there is the result.

    A job that ends with another code than 0 fails the task without a retry when it has written a result: it has found
    something that trying again will not mend. `describe_failure` makes a sentence of it.
    """

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
            self._hook = self._build_hook(settings, [*self.job_arguments, "--output", str(output)])
            try:
                self._hook.submit(self.application)
            except AirflowException:
                if output.exists():
                    raise AirflowFailException(self.describe_failure(json.loads(output.read_text()))) from None
                raise
            return dict(json.loads(output.read_text()))

    def describe_failure(self, result: dict[str, Any]) -> str:
        return json.dumps(result)

    def _build_hook(self, settings: Settings, arguments: list[str]) -> SparkSubmitHook:
        from switchyard.drivers.java import find_java
        from switchyard.drivers.jobs import job_conf

        hook = JobSubmitHook(
            conf=self.conf,
            conn_id=self._conn_id,
            driver_memory=settings.driver_memory,
            # What it finds comes back in a file, so the driver is here whatever the connection says.
            deploy_mode="client",
            name=f"switchyard-{Path(self.application).stem}",
            application_args=arguments,
            env_vars=submit_environment(os.environ, Path(sys.executable), find_java().path),
        )
        hook.apply_conf(job_conf(settings, hook.master))
        return hook
