"""spark-submit of one generation as an Airflow task: graceful stop, fencing, Kafka settings kept private.
The task lives as long as the driver; the driver's output is the task's log. Nothing here decides on swaps.
With a spare driver the task takes that one, and follows it as if it had started it. In cluster mode the provider starts
the driver on another machine, notes its id, and finds it again after a restart of Airflow."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)

from switchyard.airflow.batch_jobs import JobSubmitHook
from switchyard.airflow.connection import read_kafka
from switchyard.airflow.defaults import SPARK_CONNECTION
from switchyard.airflow.watchdog import Pulse, watching
from switchyard.deadline import Deadline
from switchyard.drivers.clusters import CLUSTER, check_place, elsewhere_environment, find_exit_code, to_local
from switchyard.drivers.submission import submit_arguments, submit_environment
from switchyard.layout import KAFKA_CONNECTION
from switchyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from switchyard.airflow.generation_tasks import Admitted
    from switchyard.drivers.detached_process import DetachedProcess

STOPPED_EXIT_CODE = 128 + signal.SIGTERM
# Airflow sends SIGKILL to a task 5 seconds after SIGTERM; the log should still say how the driver ended.
KILL_PATIENCE_SECONDS = 4.0
FOLLOW_SECONDS = 0.5


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

    @property
    def is_on_this_machine(self) -> bool:
        """In cluster mode the driver is a process of another machine, and spark-submit only watches it."""
        return str(self._connection["deploy_mode"]) != CLUSTER

    def give_arguments(self, arguments: Sequence[str]) -> None:
        self._application_args = list(arguments)

    def prepare(self, settings: Settings) -> None:
        """What depends on where the driver runs. Raises when none could run there."""
        from switchyard.drivers.java import find_java
        from switchyard.drivers.jobs import job_conf

        elsewhere, python = not self.is_on_this_machine, Path(sys.executable)
        check_place(self.master, self._connection["deploy_mode"], settings.kafka_properties)
        self._track_driver_via_k8s_api = elsewhere and self._is_kubernetes
        self._yarn_track_via_rm_api = elsewhere and self._is_yarn
        self._env_vars = (
            elsewhere_environment(os.environ, python)
            if elsewhere
            else submit_environment(os.environ, python, find_java().path)
        )
        self.apply_conf(job_conf(settings, self.master, elsewhere))

    def stamp(self, settings: Settings, token_url: str) -> dict[str, str]:
        """What a driver that is submitted now would be started with."""
        from switchyard.drivers.fingerprint import fingerprint_driver

        return fingerprint_driver(
            settings, self.master, {name: str(value) for name, value in self._conf.items()}, token_url
        )

    def follow(self, process: DetachedProcess) -> None:
        """To the end of a driver that another task has started: its output is this task's log from now on."""
        self._submit_sp = process
        while process.poll() is None:
            self.show(process)
            time.sleep(FOLLOW_SECONDS)
        self.show(process)
        if process.returncode:
            raise AirflowException(
                f"The driver that was a spare ended with code {process.returncode}.{self._submit_log_tail}"
            )

    def show(self, process: DetachedProcess) -> None:
        while lines := process.read_lines():
            self._process_spark_submit_log(iter(lines))

    def end_hung(self, silence_seconds: float) -> None:
        """A driver that does not look around any more will not answer a polite request either."""
        process = self._submit_sp
        if process is not None and process.poll() is None:
            self.log.warning("The driver was silent for %.0f s; it is ended and started again.", silence_seconds)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def on_kill(self) -> None:
        if not self.is_on_this_machine:
            self.was_killed = True
            super().on_kill()
            return
        process = self._submit_sp
        if process is None or process.poll() is not None:
            return
        self.was_killed = True
        target = self._find_driver(process.pid) or process.pid
        self.log.info("Asking the driver (pid %s) to finish its batch and end.", target)
        with suppress(ProcessLookupError):
            os.kill(target, signal.SIGTERM)
        for _ in Deadline(KILL_PATIENCE_SECONDS).polls(0.1):
            if process.poll() is not None:
                return
        self.log.info("The driver is still finishing its batch; it ends by itself.")

    def _find_driver(self, session: int) -> int | None:
        """The pid the driver wrote, if that process belongs to this spark-submit, not to another attempt."""
        try:
            pid = int(self._driver_pid_file.read_text())
            return pid if os.getsid(pid) == session else None
        except (OSError, ValueError):
            return None


def build_driver_hook(
    settings: Settings,
    name: str,
    arguments: Sequence[str],
    pid_file: Path,
    conf: Mapping[str, Any] | None = None,
    conn_id: str = SPARK_CONNECTION,
    deploy_mode: str | None = None,
) -> GenerationSubmitHook:
    """Resolved when a task runs and not in the DAG: parsing must neither search for Java nor list jars."""
    hook = GenerationSubmitHook(
        driver_pid_file=pid_file,
        conf=dict(conf or {}),
        conn_id=conn_id,
        driver_memory=settings.driver_memory,
        name=name,
        application_args=list(arguments),
        deploy_mode=deploy_mode,
    )
    hook.prepare(settings)
    return hook


class GenerationSubmitOperator(SparkSubmitOperator):
    """The driver of one generation. Retried by Airflow on the same checkpoint for as long as the generation lives."""

    ui_color = "#cfe8d5"

    def __init__(self, *, kafka_conn_id: str = KAFKA_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kafka_conn_id = kafka_conn_id

    def execute(self, context: Context) -> None:
        from switchyard.airflow.generation_tasks import admit_run, is_killed, is_under_way, judge_end

        settings = load_settings()
        kafka = read_kafka(self.kafka_conn_id)
        try:
            admitted = admit_run(settings, kafka, context)
        except (AirflowFailException, AirflowSkipException):
            self._show_early_driver(settings, context)
            raise
        self.log.info("Starting the driver: %s", admitted.note)
        request = admitted.submission
        hook = self._build_hook(settings, request.generation, partial(submit_arguments, request))
        self._hook = hook
        if not hook.is_on_this_machine:
            self._run_elsewhere(settings, hook, admitted, context)
            return
        with self._kafka_properties(settings, request.generation, kafka):
            spare = self._find_spare(settings, hook, admitted, kafka)
            failure = self._run_driver(settings, hook, request.generation, spare)
        is_lost = hook.exit_code != STOPPED_EXIT_CODE and is_killed(hook.exit_code or 0)
        if spare is not None and is_lost and is_under_way(settings, admitted):
            self.log.warning("The driver that was a spare was killed before the flip; another one is started.")
            with self._kafka_properties(settings, request.generation, kafka):
                failure = self._run_driver(settings, hook, request.generation, None)
        if hook.exit_code == STOPPED_EXIT_CODE:
            self._go_on_later()
        judge_end(settings, admitted, hook.exit_code)
        if failure is not None:
            raise failure

    def _run_elsewhere(
        self, settings: Settings, hook: GenerationSubmitHook, admitted: Admitted, context: Context
    ) -> None:
        """The provider's own way: it keeps the id of the driver, so that the next try follows the one that runs."""
        from switchyard.airflow.generation_tasks import judge_end

        failure: Exception | None = None
        self.application = to_local(self.application)
        self._track_driver_via_k8s_api = hook._should_track_driver_via_k8s_api()
        try:
            super().execute(context)
        except (AirflowException, RuntimeError) as error:
            if hook.was_killed:
                raise
            failure = error
        exit_code = find_exit_code(str(failure)) if failure else 0
        if exit_code == STOPPED_EXIT_CODE:
            self._go_on_later()
        judge_end(settings, admitted, exit_code)
        if failure is not None:
            raise failure

    def _run_driver(
        self, settings: Settings, hook: GenerationSubmitHook, generation: int, spare: DetachedProcess | None
    ) -> AirflowException | None:
        """To the end of a driver; returns how it failed. One that Airflow has killed is not judged any more."""
        from switchyard.airflow.spare_orders import driver_pid, release

        try:
            with watching(self._pulse(settings, generation, driver_pid(spare)), hook.end_hung):
                if spare is None:
                    hook.submit(self.application)
                else:
                    hook.follow(spare)
        except AirflowException as failure:
            if hook.was_killed:
                raise
            return failure
        finally:
            release(spare)
        return None

    def _show_early_driver(self, settings: Settings, context: Context) -> None:
        """The swap had its outcome before this task began; what its driver said about it belongs here all the same."""
        from switchyard.airflow.spare_orders import adopt, release

        swap_id = str((context["dag_run"].conf or {}).get("swap_id") or "")
        spare = adopt(settings, swap_id) if swap_id else None
        if spare is not None:
            spare.poll()
            for line in spare.read_lines():
                self.log.info(line)
            release(spare)

    def _find_spare(
        self, settings: Settings, hook: GenerationSubmitHook, admitted: Admitted, kafka: Mapping[str, str]
    ) -> DetachedProcess | None:
        """A driver that was a spare: it works for this swap already, or takes the order now."""
        from switchyard.airflow.spare_orders import adopt, give_order
        from switchyard.drivers.spares import Order

        spare, request = adopt(settings, admitted.swap_id), admitted.submission
        if spare is None:
            properties = settings.workspace.kafka_properties(request.generation, os.getpid())
            order = Order(request=request, kafkaProperties=properties, swapId=admitted.swap_id)
            spare = adopt(settings, admitted.swap_id) if give_order(settings, hook, kafka, order) else None
        if spare is not None:
            self.log.info("The driver (session %s) was a spare; its whole log follows.", spare.pid)
        return spare

    def on_kill(self) -> None:
        if self._hook is not None:
            self._hook.on_kill()

    def _pulse(self, settings: Settings, generation: int, pid: int | None = None) -> Pulse:
        path = settings.workspace.driver_pid(generation)
        return Pulse(path, settings.ready_deadline_seconds, settings.hung_seconds, pid)

    def _build_hook(
        self, settings: Settings, generation: int, arguments: Callable[[Path], list[str]]
    ) -> GenerationSubmitHook:
        self.name = f"switchyard-generation-{generation}"
        workspace, mode = settings.workspace, self._deploy_mode
        pid_file = workspace.driver_pid(generation)
        hook = build_driver_hook(settings, self.name, [], pid_file, self.conf, self._conn_id, mode)
        written = workspace.kafka_properties(generation, os.getpid())
        self.application_args = arguments(
            written if hook.is_on_this_machine or settings.kafka_properties is None else settings.kafka_properties
        )
        hook.give_arguments(self.application_args)
        return hook

    @contextmanager
    def _kafka_properties(self, settings: Settings, generation: int, kafka: Mapping[str, str]) -> Iterator[None]:
        """Written just before the driver starts and removed when it ends: no secret outlives its use."""
        from switchyard.kafka.client_settings import write_properties

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
