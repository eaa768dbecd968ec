"""The task `stream`: runs the driver of one generation, for as long as the driver lives.

`start_driver.py` has the three ways to run one, `spark_submit.py` the call. Nothing here decides on swaps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException

from switchyard.airflow import generation_tasks, spare_orders
from switchyard.airflow.connection import read_kafka
from switchyard.airflow.spark_submit import SparkSubmit, read_submit
from switchyard.airflow.start_driver import (
    STOPPED_EXIT_CODE,
    ClusterDriver,
    DriverLog,
    LocalDriver,
    SpareDriver,
    SubmittedDriver,
)
from switchyard.drivers.clusters import is_kubernetes, to_local
from switchyard.drivers.submission import submit_arguments
from switchyard.layout import KAFKA_CONNECTION
from switchyard.settings import Settings, load_settings
from switchyard.swap.history import Request

if TYPE_CHECKING:
    from switchyard.drivers.detached_process import DetachedProcess


class GenerationSubmitOperator(SparkSubmitOperator):
    """Run the driver of one generation. Airflow retries it on the same checkpoint while the generation lives."""

    ui_color = "#cfe8d5"
    # Used instead of what the Spark connection says.
    forced_deploy_mode: str | None = None

    def __init__(self, *, kafka_conn_id: str = KAFKA_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kafka_conn_id = kafka_conn_id
        self._driver: LocalDriver | ClusterDriver | None = None

    def execute(self, context: Context) -> None:
        settings = load_settings()
        kafka = read_kafka(self.kafka_conn_id)
        try:
            request = generation_tasks.admit_run(settings, kafka, context)
        except (AirflowFailException, AirflowSkipException):
            self._show_early_driver(settings, context)
            raise
        place = request.generation, request.target, request.start, request.swapId
        self.log.info("Starting the driver: generation %s, %s, from %s (swap %s)", *place)
        submit = self.read_submit(settings)
        if submit.place.is_here:
            failure = self._run_here(settings, submit, kafka, request)
        else:
            failure = self._run_elsewhere(settings, submit, request, context)
        if self._exit_code == STOPPED_EXIT_CODE:
            self._go_on_later()
        generation_tasks.judge_end(settings, request, self._exit_code)
        if failure is not None:
            raise failure

    def on_kill(self) -> None:
        if self._driver is not None:
            self._driver.on_kill()

    @property
    def _exit_code(self) -> int | None:
        return self._driver.exit_code if self._driver else None

    def read_submit(self, settings: Settings) -> SparkSubmit:
        return read_submit(settings, self.conf, self.forced_deploy_mode)

    def _run_here(
        self, settings: Settings, submit: SparkSubmit, kafka: Mapping[str, str], request: Request
    ) -> Exception | None:
        """Run a spare if there is one. If that is killed before the flip, there is time to start another driver."""
        with self._kafka_properties(settings, request.generation, kafka) as properties:
            spare = spare_orders.find_spare(settings, submit, kafka, request, properties)
            if spare is None:
                return self._submit(settings, submit, request, properties)
            failure = self._follow_spare(settings, request.generation, spare)
        was_killed = self._exit_code != STOPPED_EXIT_CODE and generation_tasks.is_killed(self._exit_code or 0)
        if not was_killed or not generation_tasks.is_under_way(settings, request):
            return failure
        self.log.warning("The driver that was a spare was killed before the flip; another one is started.")
        with self._kafka_properties(settings, request.generation, kafka) as properties:
            return self._submit(settings, submit, request, properties)

    def _submit(self, settings: Settings, submit: SparkSubmit, request: Request, properties: Path) -> Exception | None:
        arguments = submit_arguments(request.generation, request.target, request.start, properties)
        return self.prepare_driver(settings, submit, request.generation, arguments).run_watched(settings)

    def prepare_driver(
        self, settings: Settings, submit: SparkSubmit, generation: int, arguments: list[str]
    ) -> SubmittedDriver:
        command = submit.make_command(name_driver(generation), self.application, arguments)
        pid_file = settings.workspace.driver_pid(generation)
        self._driver = driver = SubmittedDriver(command, submit.environment, pid_file, self.log)
        return driver

    def _follow_spare(self, settings: Settings, generation: int, spare: DetachedProcess) -> Exception | None:
        self.log.info("The driver (session %s) was a spare; its whole log follows.", spare.pid)
        self._driver = driver = SpareDriver(spare, settings.workspace.driver_pid(generation), self.log)
        try:
            return driver.run_watched(settings, spare_orders.driver_pid(spare))
        finally:
            spare_orders.release(spare)

    def _run_elsewhere(
        self, settings: Settings, submit: SparkSubmit, request: Request, context: Context
    ) -> Exception | None:
        """Let the base class submit the driver and follow it, with two of its private attributes set."""
        properties = Path(str(settings.kafka_properties))
        arguments = submit_arguments(request.generation, request.target, request.start, properties)
        # Else the base class would make a hook without our settings.
        self._hook = hook = submit.make_hook(name_driver(request.generation), arguments)
        # Makes the base class say at once when the connection names no namespace.
        self._track_driver_via_k8s_api = is_kubernetes(submit.place.master)
        self.application = to_local(self.application)
        execute = super().execute
        self._driver = driver = ClusterDriver(lambda: execute(context), hook.on_kill)
        return driver.run()

    def _show_early_driver(self, settings: Settings, context: Context) -> None:
        """Show the log of a spare whose swap had its outcome before this task began: it says why."""
        swap_id = str((context["dag_run"].conf or {}).get("swap_id") or "")
        spare = spare_orders.adopt(settings, swap_id) if swap_id else None
        if spare is not None:
            spare.poll()
            DriverLog(self.log).show_new_lines(spare)
            spare_orders.release(spare)

    @contextmanager
    def _kafka_properties(self, settings: Settings, generation: int, kafka: Mapping[str, str]) -> Iterator[Path]:
        """Write the settings just before the driver starts; remove them when it ends: no secret outlives its use."""
        from switchyard.kafka.client_settings import write_properties

        path = settings.workspace.kafka_properties(generation, os.getpid())
        write_properties(path, kafka)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _go_on_later(self) -> None:
        self.log.info("The driver was stopped after finishing its batch; it resumes from its checkpoint.")
        # A stop on request, for instance by `switchyard down`, must not cost one of the retries.
        again_at = datetime.now(UTC) + timedelta(seconds=1)
        raise AirflowRescheduleException(again_at) from None  # type: ignore[no-untyped-call]


def name_driver(generation: int) -> str:
    return f"switchyard-generation-{generation}"
