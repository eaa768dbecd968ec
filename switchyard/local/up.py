"""`switchyard up` and `switchyard down`: start the supervisor and print its progress, or ask it to stop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from deltalake.exceptions import DeltaError

from switchyard.drivers import processes, running_drivers
from switchyard.drivers.jars import broker_jars, object_store_jars, spark_jars
from switchyard.drivers.java import find_java
from switchyard.drivers.supervisor_state import (
    State,
    find_supervisor,
    is_supervisor,
    read_state,
    state_file,
    supervisor_arguments,
)
from switchyard.errors import SwitchyardError
from switchyard.local import airflow, loopback
from switchyard.local.installation import end_leftovers
from switchyard.local.kafka_settings import control_kafka_of_settings, kafka_of_settings
from switchyard.object_store import is_on_object_store
from switchyard.settings import Settings
from switchyard.stream.pid_file import catching_stop
from switchyard.swap.log_messages import open_history
from switchyard.swap.reconcile import retire_kept
from switchyard.tables.root_check import prove_commits

LEAST_FREE_BYTES = 1 << 30
STOP_SECONDS = 120.0

PrintLine = Callable[[str], None]


def up(settings: Settings, detach: bool, demo: bool | None, print_line: PrintLine) -> None:
    """Return when all is ready (`detach`), else when all has been stopped again. Raise when it could not start."""
    check_machine(settings)
    process, began = start_supervisor(settings, wants_demo(settings, demo)), time.monotonic()
    # SIGTERM and a closed terminal are treated as Ctrl-C.
    with catching_stop(partial(signal.default_int_handler, signal.SIGINT, None), signal.SIGHUP):
        try:
            state = follow_start(
                settings, process, lambda line: print_line(f"{time.monotonic() - began:5.1f} s  {line}")
            )
            print_line("\n".join(describe_ready(settings, state)))
            if detach:
                return
            print_line("Ctrl-C stops everything.")
            process.wait()
        except KeyboardInterrupt:
            print_line("stopping...")
            down(settings, print_line)
            return
    last = read_state(settings.workspace)
    if last is not None and last.phase == "failed":
        raise SwitchyardError(last.message)


def wants_demo(settings: Settings, asked: bool | None) -> bool:
    # The demo writes into both topics: into those of an external broker only when asked to.
    return settings.kafka_bootstrap is None if asked is None else asked


def check_machine(settings: Settings) -> None:
    """Refuse what can be known to fail before a process is started."""
    workspace = settings.workspace
    airflow.require_airflow_here(settings)
    if find_supervisor(workspace) is not None:
        raise SwitchyardError(f"already running on {workspace.home}: `switchyard down` stops it.")
    kafka_of_settings(settings)
    control_kafka_of_settings(settings)
    find_java()
    spark_jars()
    if is_on_object_store(settings.root):
        object_store_jars()
        prove_commits(settings.layout)
    workspace.run.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(workspace.home).free
    if free < LEAST_FREE_BYTES:
        raise SwitchyardError(f"the disk of {workspace.home} is full: {free >> 20} MiB free, 1 GiB is needed.")
    end_leftovers(settings, read_state(workspace))
    loopback.require_free(settings.airflow_port, "SWITCHYARD_AIRFLOW_PORT")
    if settings.kafka_bootstrap is None:
        broker_jars()
        loopback.require_free(settings.kafka_port, "SWITCHYARD_KAFKA_PORT")


def start_supervisor(settings: Settings, demo: bool) -> subprocess.Popen[bytes]:
    workspace = settings.workspace
    state_file(workspace).unlink(missing_ok=True)
    command = [sys.executable, *supervisor_arguments(workspace, demo)]
    log = workspace.process_logs / "supervisor.log"
    return processes.launch(command, workspace.home, log, airflow.airflow_environment(settings))


def follow_start(settings: Settings, process: subprocess.Popen[bytes], print_line: PrintLine) -> State:
    """Print each component once it is ready; return when all are, raise when the supervisor gave up."""
    printed: set[str] = set()
    print_line("starting the broker and Airflow" if settings.kafka_bootstrap is None else "starting Airflow")
    while True:
        state = read_state(settings.workspace)
        if state is not None and state.pid == process.pid:
            _print_news(state, printed, print_line)
            if state.phase == "ready":
                return state
            if state.phase == "failed":
                process.wait()
                raise SwitchyardError(state.message)
        if process.poll() is not None:
            log = settings.workspace.process_logs / "supervisor.log"
            last = read_state(settings.workspace)
            raise SwitchyardError(last.message if last and last.message else f"the start failed: see {log}.")
        time.sleep(0.2)


def _print_news(state: State, printed: set[str], print_line: PrintLine) -> None:
    ready = [name for name, part in state.components.items() if part.ready and name not in printed]
    for name in ready:
        print_line(f"{name} is ready")
    printed.update(ready)
    if "scheduler" in printed and "generation" not in printed:
        print_line("waiting for the generation's driver and its first rows")
        printed.add("generation")


def describe_ready(settings: Settings, state: State) -> Iterator[str]:
    yield f"ready: {state.message}"
    yield f"  page      {airflow.airflow_url(settings)}/plugin/switchyard"
    yield f"  Airflow   {airflow.airflow_url(settings)}"
    yield f"  user      {airflow.USER}, password in {os.path.relpath(airflow.password_file(settings.workspace))}"
    yield f"  Kafka     {settings.bootstrap}"
    command = find_command()
    yield f"  try       {command} status"
    yield f"            {command} tail final_ui --limit 5"
    yield f"            {command} audit"
    yield f"            {command} down"


def find_command() -> str:
    """Return what to type to run `switchyard`: its name when it is on the PATH, else its relative path."""
    ours = Path(sys.executable).with_name("switchyard")
    return "switchyard" if shutil.which("switchyard") == str(ours) else os.path.relpath(ours)


def down(settings: Settings, print_line: PrintLine) -> None:
    """Stop everything in order and leave no process. Do nothing when nothing runs."""
    workspace = settings.workspace
    airflow.require_airflow_here(settings)
    last = read_state(workspace)
    if last is not None and is_supervisor(last.pid, workspace):
        print_line("stopping: drivers finish their batch, then Airflow and the broker end")
        supervisors = list(filter(None, [processes.find_process(last.pid)]))
        processes.end(lambda: list(filter(processes.is_alive, supervisors)), STOP_SECONDS)
        last = read_state(workspace)
    elif not _has_remains(settings, last):
        print_line("nothing is running")
        return
    end_leftovers(settings, last)
    if last is not None and last.keeps:
        retire_all_kept(settings, print_line)
    print_line("stopped")


def retire_all_kept(settings: Settings, print_line: PrintLine) -> None:
    """Retire the kept generations; if the tables cannot be reached, say what to do, as all else has stopped."""
    try:
        for generation in retire_kept(settings.layout, open_history(settings.layout)):
            print_line(f"generation {generation} was kept and has retired")
    except (SwitchyardError, OSError, DeltaError) as error:
        print_line(f"generations that were kept could not be retired: {error}; end each with `switchyard retire N`")


def _has_remains(settings: Settings, last: State | None) -> bool:
    # A supervisor that was killed may have left its processes.
    pids = [part.pid for part in last.components.values() if part.pid] if last else []
    return bool(running_drivers.find_drivers(settings.workspace) or processes.find_members(pids))
