"""The spark-submit call of a job, as the Spark connection and the settings want it.

Two private names of the Spark provider are used here and nowhere else, because it has no public ones: `_connection`
(the master decides about settings that a hook is made with) and `_build_spark_submit_command` (a hook runs a command
in this task's own process group, and a driver must outlive that).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from switchyard.airflow.defaults import SPARK_CONNECTION
from switchyard.drivers.clusters import SparkDeployment, elsewhere_environment, is_kubernetes, is_yarn
from switchyard.drivers.submission import bind_environment, submit_environment
from switchyard.errors import InputError
from switchyard.settings import Settings


@dataclass(frozen=True)
class SparkSubmit:
    """What every job is submitted with, whatever its name and its arguments."""

    place: SparkDeployment
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    """What is added to the environment of the task"""
    settings: Settings

    def make_hook(self, name: str, arguments: Sequence[str]) -> SparkSubmitHook:
        master, is_elsewhere = self.place.master, not self.place.is_here
        return SparkSubmitHook(
            conf=dict(self.conf),
            conn_id=SPARK_CONNECTION,
            driver_memory=self.settings.driver_memory,
            name=name,
            application_args=list(arguments),
            env_vars=dict(self.environment),
            deploy_mode=self.place.deploy_mode,
            track_driver_via_k8s_api=is_elsewhere and is_kubernetes(master),
            yarn_track_via_rm_api=is_elsewhere and is_yarn(master),
        )

    def make_command(self, name: str, application: str, arguments: Sequence[str]) -> list[str]:
        return list(self.make_hook(name, arguments)._build_spark_submit_command(application))

    def fingerprint(self, token_url: str) -> dict[str, str]:
        """Return what a driver that is submitted now would be started with, part by part."""
        from switchyard.drivers.fingerprint import fingerprint_driver

        return fingerprint_driver(self.settings, self.place.master, self.conf, token_url)


def read_submit(
    settings: Settings, conf: Mapping[str, Any] | None = None, deploy_mode: str | None = None
) -> SparkSubmit:
    """Read what jobs are submitted with. Call it in a task: parsing a DAG must not search for Java or list jars."""
    from switchyard.drivers.java import find_java
    from switchyard.drivers.jobs import job_conf

    place, python = read_place(deploy_mode), Path(sys.executable)
    place.check(settings.kafka_properties)
    asked = {name: str(value) for name, value in (conf or {}).items()}
    environment = (
        bind_environment(place.master) | submit_environment(os.environ, python, find_java().path)
        if place.is_here
        else elsewhere_environment(os.environ, python)
    )
    return SparkSubmit(place, job_conf(settings, place.master, not place.is_here) | asked, environment, settings)


def read_place(deploy_mode: str | None = None) -> SparkDeployment:
    try:
        connection = SparkSubmitHook(conn_id=SPARK_CONNECTION, deploy_mode=deploy_mode)._connection
    except (NameError, RuntimeError) as error:
        # Without the other provider this one fails on a name that it has not imported (6.3.4).
        raise InputError(
            "the Spark connection names Kubernetes: install apache-airflow-providers-cncf-kubernetes in Airflow"
        ) from error
    return SparkDeployment(str(connection["master"]), connection["deploy_mode"])
