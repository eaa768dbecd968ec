"""spark-submit of one generation as an Airflow task: graceful stop, fencing, Kafka settings kept private.
The task lives as long as the driver; the driver's output is the task's log. Nothing here decides on swaps."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException

from switchyard.airflow.batch_jobs import JobSubmitHook
from switchyard.airflow.connection import read_kafka
from switchyard.airflow.defaults import KAFKA_CONNECTION
from switchyard.airflow.watchdog import Pulse, watching
from switchyard.settings import Settings, load_settings
from switchyard.submission import submit_arguments, submit_environment

STOPPED_EXIT_CODE = 128 + signal.SIGTERM
# Airflow sends SIGKILL to a task 5 seconds after SIGTERM; the log should still say how the driver ended.
KILL_PATIENCE_SECONDS = 4.0


class GenerationSubmitHook(JobSubmitHook):
    """Runs spark-submit in a session of its own, and stops the Python driver, not the JVM around it."""

    def __init__(self, *, driver_pid_file: Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._driver_pid_file = driver_pid_file
        self.was_killed = False

    @property
    def exit_code(self) -> int | None:
        process = self._submit_sp
        return None if process is None else process.returncode

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """A session of its own: Airflow kills the task's process group, and a batch must not die half-way."""
        return super().submit(application, start_new_session=True, **kwargs)

    def end_hung(self, silence_seconds: float) -> None:
        """A driver that does not look around any more will not answer a polite request either."""
        process = self._submit_sp
        if process is not None and process.poll() is None:
            self.log.warning("The driver was silent for %.0f s; it is ended and started again.", silence_seconds)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def on_kill(self) -> None:
        process = self._submit_sp
        if process is None or process.poll() is not None:
            return
        self.was_killed = True
        target = self._find_driver(process.pid) or process.pid
        self.log.info("Asking the driver (pid %s) to finish its batch and end.", target)
        with suppress(ProcessLookupError):
            os.kill(target, signal.SIGTERM)
        deadline = time.monotonic() + KILL_PATIENCE_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        if process.poll() is None:
            self.log.info("The driver is still finishing its batch; it ends by itself.")

    def _find_driver(self, session: int) -> int | None:
        """The pid the driver wrote, if that process belongs to this spark-submit, not to another attempt."""
        try:
            pid = int(self._driver_pid_file.read_text())
            return pid if os.getsid(pid) == session else None
        except (OSError, ValueError):
            return None


class GenerationSubmitOperator(SparkSubmitOperator):
    """The driver of one generation. Retried by Airflow on the same checkpoint for as long as the generation lives."""

    ui_color = "#cfe8d5"

    def __init__(self, *, kafka_conn_id: str = KAFKA_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kafka_conn_id = kafka_conn_id

    def execute(self, context: Context) -> None:
        from switchyard.airflow.generation_tasks import admit_run, judge_end

        settings = load_settings()
        kafka = read_kafka(self.kafka_conn_id)
        admitted = admit_run(settings, kafka, context)
        self.log.info("Starting the driver: %s", admitted.note)
        request = admitted.submission
        hook = self._build_hook(settings, request.generation, partial(submit_arguments, request))
        self._hook = hook
        with self._kafka_properties(settings, request.generation, kafka):
            try:
                with watching(self._pulse(settings, request.generation), hook.end_hung):
                    hook.submit(self.application)
            except AirflowException:
                if hook.was_killed:
                    raise
                if hook.exit_code == STOPPED_EXIT_CODE:
                    self._go_on_later()
                judge_end(settings, admitted, hook.exit_code)
                raise
        judge_end(settings, admitted, 0)

    def on_kill(self) -> None:
        if self._hook is not None:
            self._hook.on_kill()

    def _pulse(self, settings: Settings, generation: int) -> Pulse:
        return Pulse(settings.workspace.driver_pid(generation), settings.ready_deadline_seconds, settings.hung_seconds)

    def _build_hook(
        self, settings: Settings, generation: int, arguments: Callable[[Path], list[str]]
    ) -> GenerationSubmitHook:
        """Resolved here and not in the DAG: parsing must neither search for Java nor list jars."""
        from switchyard.local.java import find_java
        from switchyard.local.jobs import job_conf

        self.env_vars = submit_environment(os.environ, Path(sys.executable), find_java().path)
        self.application_args = arguments(settings.workspace.kafka_properties(generation, os.getpid()))
        self.name = f"switchyard-generation-{generation}"
        hook = GenerationSubmitHook(
            driver_pid_file=settings.workspace.driver_pid(generation),
            conf=self.conf,
            conn_id=self._conn_id,
            driver_memory=settings.driver_memory,
            name=self.name,
            application_args=self.application_args,
            env_vars=self.env_vars,
        )
        hook.apply_conf(job_conf(hook.master))
        return hook

    @contextmanager
    def _kafka_properties(self, settings: Settings, generation: int, kafka: Mapping[str, str]) -> Iterator[None]:
        """Written just before the driver starts and removed when it ends: no secret outlives its use."""
        from switchyard.kafka.client import write_properties

        path = settings.workspace.kafka_properties(generation, os.getpid())
        write_properties(path, kafka)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _go_on_later(self) -> None:
        """Stopped on request, for instance by `switchyard down`: not a failure, so it costs no retry."""
        self.log.info("The driver was stopped after finishing its batch; it resumes from its checkpoint.")
        again_at = datetime.now(UTC) + timedelta(seconds=1)
        raise AirflowRescheduleException(again_at) from None  # type: ignore[no-untyped-call]
