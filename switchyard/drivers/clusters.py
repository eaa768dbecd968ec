"""Where a driver runs, as the Spark connection says it, and what one on another machine is told. Pure.

In cluster mode, on YARN and Kubernetes, the driver is started by the cluster. The installation must be there at the
same path, as it is with one image for all; secrets come from files of that machine, never from a command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from switchyard.errors import InputError

CLUSTER = "cluster"
# Of the environment here, what a driver elsewhere needs and everybody may see. The keys of a login are not in it.
_STORE = frozenset(
    {
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_PROFILE",
        "AWS_SHARED_CREDENTIALS_FILE",
    }
)
_EXIT = re.compile(r"exit(?:[ _]code[:=]|ed with status)\s*(\d+)", re.IGNORECASE)


def is_yarn(master: str) -> bool:
    return master.startswith("yarn")


def is_kubernetes(master: str) -> bool:
    return master.startswith("k8s://")


@dataclass(frozen=True)
class Place:
    """Where drivers run."""

    master: str
    deploy_mode: str | None = None

    @property
    def is_here(self) -> bool:
        """In cluster mode the driver is a process of another machine, and spark-submit only watches it."""
        return self.deploy_mode != CLUSTER

    def check(self, kafka_properties: Path | None) -> None:
        """Raises with one sentence when no driver could be started there."""
        if self.is_here:
            return
        if not is_yarn(self.master) and not is_kubernetes(self.master):
            raise InputError(
                "the Spark connection asks for cluster mode, which Spark has for Python only on YARN and Kubernetes: "
                "set its deploy mode to client"
            )
        if kafka_properties is None:
            raise InputError(
                "in cluster mode a driver reads its Kafka settings from a file of its own machine: "
                "name it in SWITCHYARD_KAFKA_PROPERTIES"
            )


def elsewhere_conf(jars: Sequence[Path]) -> dict[str, str]:
    """Jars that are at the same path there, for the driver and its executors alike."""
    return {"spark.jars": ",".join(map(to_local, jars))}


def to_local(path: Path | str) -> str:
    """A file of the machine that opens it: nothing is sent there."""
    return f"local://{path}"


def elsewhere_environment(base: Mapping[str, str], python: Path) -> dict[str, str]:
    """Goes onto the command line of spark-submit, so it holds no secret."""
    shared = {name: value for name, value in base.items() if name.startswith("SWITCHYARD_") or name in _STORE}
    return shared | {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONUNBUFFERED": "1",
    }


def find_exit_code(failure: str) -> int:
    """The exit code of a driver elsewhere, from what the cluster says about its end; 1 when it says nothing."""
    found = _EXIT.search(failure)
    return int(found[1]) if found and int(found[1]) else 1
