"""Running a Spark job from the command line, the way Airflow runs it, and waiting for its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from switchyard.errors import SwitchyardError
from switchyard.layout import PROJECT
from switchyard.local.jars import spark_jars
from switchyard.local.java import find_java
from switchyard.settings import Settings
from switchyard.submission import join_jars, spark_conf, submit_environment


def submit_command(settings: Settings, job: str, arguments: list[str]) -> list[str]:
    conf = [f"--conf={key}={value}" for key, value in spark_conf(settings.spark_master).items()]
    return [
        str(Path(sys.executable).parent / "spark-submit"),
        "--master",
        settings.spark_master,
        "--driver-memory",
        settings.driver_memory,
        "--jars",
        join_jars(spark_jars()),
        *conf,
        str(PROJECT / "jobs" / job),
        *arguments,
    ]


def run_job(settings: Settings, job: str, arguments: list[str], log: Path) -> int:
    """Runs a job to its end with its output in a log file; returns its exit code."""
    environment = dict(os.environ) | submit_environment(os.environ, Path(sys.executable), find_java().path)
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
