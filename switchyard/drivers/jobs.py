"""Run a Spark job from the command line, without Airflow, in the way Airflow runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from switchyard.drivers.class_archive import find_archive
from switchyard.drivers.jars import object_store_jars, spark_jars
from switchyard.drivers.java import find_java
from switchyard.drivers.submission import bind_environment, spark_conf, submit_environment
from switchyard.errors import SwitchyardError
from switchyard.layout import PROJECT
from switchyard.object_store import is_on_object_store
from switchyard.settings import Settings


def submit_command(
    settings: Settings, job: str, arguments: list[str], conf: Mapping[str, str] | None = None
) -> list[str]:
    conf = job_conf(settings, settings.spark_master) if conf is None else conf
    return [
        str(Path(sys.executable).parent / "spark-submit"),
        "--master",
        settings.spark_master,
        "--driver-memory",
        settings.driver_memory,
        *(f"--conf={key}={value}" for key, value in conf.items()),
        str(PROJECT / "jobs" / job),
        *arguments,
    ]


def job_conf(settings: Settings, master: str, is_elsewhere: bool = False) -> dict[str, str]:
    """Return the Spark settings of a job, with the jars and the class archive of this clone."""
    store_jars = object_store_jars() if is_on_object_store(settings.root) else []
    sizes, options = settings.executor_sizes, settings.driver_java_options
    return spark_conf(master, spark_jars(), find_archive(), store_jars, sizes, is_elsewhere, options)


def run_job(settings: Settings, job: str, arguments: list[str], log: Path) -> int:
    """Run a job to its end, with its output in a log file; return its exit code."""
    environment = dict(os.environ) | submit_environment(os.environ, Path(sys.executable), find_java().path)
    environment |= bind_environment(settings.spark_master)
    environment["SWITCHYARD_ROOT"] = settings.layout.under() if settings.layout.is_local else settings.root
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        command = submit_command(settings, job, arguments)
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise SwitchyardError("interrupted") from None
