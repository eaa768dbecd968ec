"""Decide where a driver runs, and what a driver on another machine is told. Pure.

In cluster mode, on YARN and Kubernetes, the cluster starts the driver. That machine needs the installation at the same
path, for instance from a common image. Secrets come from its files, never from a command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from switchyard.errors import InputError

CLUSTER = "cluster"
# What a driver on another machine needs of this environment. No keys: they would stand on the command line.
_STORE = ("REGION", "DEFAULT_REGION", "ENDPOINT_URL", "ENDPOINT_URL_S3", "PROFILE", "SHARED_CREDENTIALS_FILE")
_EXIT = re.compile(r"exit(?:[ _]code[:=]|ed with status)\s*(\d+)", re.IGNORECASE)


def is_yarn(master: str) -> bool:
    return master.startswith("yarn")


def is_kubernetes(master: str) -> bool:
    return master.startswith("k8s://")


@dataclass(frozen=True)
class SparkDeployment:
    master: str
    deploy_mode: str | None = None

    @property
    def is_here(self) -> bool:
        # In cluster mode spark-submit only watches a driver on another machine.
        return self.deploy_mode != CLUSTER

    def check(self, kafka_properties: Path | None) -> None:
        """Raise if no driver can be started there."""
        if self.is_here:
            return
        if not is_yarn(self.master) and not is_kubernetes(self.master):
            raise InputError(
                "the Spark connection asks for cluster mode, which Spark has for Python only on YARN and Kubernetes: "
                "set its deploy mode to client"
            )
        if kafka_properties is None:
            raise InputError(
                "in cluster mode a driver reads its Kafka settings from a file on the machine where it runs: "
                "name it in SWITCHYARD_KAFKA_PROPERTIES"
            )


def elsewhere_conf(jars: Sequence[Path]) -> dict[str, str]:
    # The jars are at the same path on that machine, for the driver and for its executors.
    return {"spark.jars": ",".join(map(to_local, jars))}


def to_local(path: Path | str) -> str:
    """Name a file on the machine that opens it, so that Spark sends nothing."""
    return f"local://{path}"


def elsewhere_environment(base: Mapping[str, str], python: Path) -> dict[str, str]:
    # Spark puts this on the command line, so it must hold no secret.
    store = {f"AWS_{name}" for name in _STORE}
    shared = {name: value for name, value in base.items() if name.startswith("SWITCHYARD_") or name in store}
    return shared | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "PYTHONUNBUFFERED": "1"}


def find_exit_code(failure: str) -> int:
    """Return the exit code in what the cluster says about the end of a driver; 1 if it says none."""
    found = _EXIT.search(failure)
    return int(found[1]) if found and int(found[1]) else 1
