"""The spark-submit call of a job, as data. Pure: imports no Airflow and touches no disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CLASS_PATH = "spark.driver.extraClassPath"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True)
class GenerationRequest:
    """What the job is told on its command line; everything else reaches it through the environment."""

    generation: int
    users_topic: str
    accounts_topic: str
    join_type: str
    start: str


def submit_arguments(request: GenerationRequest, kafka_properties: Path) -> list[str]:
    """The job's own arguments. Only the path of the Kafka settings: a command line is visible in `ps`."""
    return [
        "--generation",
        str(request.generation),
        "--users-topic",
        request.users_topic,
        "--accounts-topic",
        request.accounts_topic,
        "--join-type",
        request.join_type,
        "--start",
        request.start,
        "--kafka-properties",
        str(kafka_properties),
    ]


def backfill_arguments(generation: int, kafka_properties: Path) -> list[str]:
    """What is to be built is in the spec of the generation."""
    return ["--generation", str(generation), "--kafka-properties", str(kafka_properties)]


def spark_conf(master: str, jars: Sequence[Path], archive: Path | None = None) -> dict[str, str]:
    """What must be fixed before the session exists; the job's session builder sets the rest.

    On one machine the jars are on the class path of the only JVM, where its class archive can hold them too.
    """
    if not master.startswith("local"):
        return {"spark.jars": ",".join(map(str, jars))}
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        CLASS_PATH: ":".join(map(str, jars)),
    }
    return conf | ({JAVA_OPTIONS: f"-XX:SharedArchiveFile={archive}"} if archive else {})


def submit_environment(base: Mapping[str, str], python: Path, java_home: Path) -> dict[str, str]:
    """Variables on top of the task's own: one Python on both sides, the Java that set-up found.

    The folder of this Python comes first on PATH, because that is where pyspark puts spark-submit.
    """
    return {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "JAVA_HOME": str(java_home),
        "PATH": f"{python.parent}:{base.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
    }
