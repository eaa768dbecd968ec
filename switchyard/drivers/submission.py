"""Make the spark-submit call of a job, as data. Pure: imports no Airflow and touches no disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from switchyard.drivers.clusters import elsewhere_conf
from switchyard.policies import Executors, Target

CLASS_PATH = "spark.driver.extraClassPath"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOOPBACK = "127.0.0.1"


def submit_arguments(generation: int, target: Target, start: str, kafka_properties: Path) -> list[str]:
    """Return the arguments of the job `stream_generation`; the rest reaches it through the environment.

    The number would be enough, as the spec of the generation says the rest. Topics and join are there for people that
    read them in `ps`, and submit the job again with them; so the Kafka settings are only a path.
    """
    joined = {"--users-topic": target.usersTopic, "--accounts-topic": target.accountsTopic}
    options = joined | {"--join-type": target.joinType, "--start": start, "--kafka-properties": str(kafka_properties)}
    return ["--generation", str(generation), *(part for option in options.items() for part in option)]


def backfill_arguments(generation: int, kafka_properties: Path) -> list[str]:
    return ["--generation", str(generation), "--kafka-properties", str(kafka_properties)]


def spark_conf(
    master: str,
    jars: Sequence[Path],
    archive: Path | None = None,
    store_jars: Sequence[Path] = (),
    executors: Executors | None = None,
    is_elsewhere: bool = False,
    java_options: str = "",
) -> dict[str, str]:
    """Return the settings that must be there before the JVM starts; the session builder of the job sets the rest."""
    if is_elsewhere:
        return (executors or Executors()).conf(master) | elsewhere_conf([*jars, *store_jars])
    # On the class path, so that the class archive covers the jars. Not those for an object store: the JVM ignores an
    # archive that was made with another class path. Executors get the jars from the driver.
    conf = {CLASS_PATH: ":".join(map(str, jars))}
    if is_local(master):
        conf |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    else:
        conf |= (executors or Executors()).conf(master)
    if fetched := [*([] if is_local(master) else jars), *store_jars]:
        conf["spark.jars"] = ",".join(map(str, fetched))
    options = [java_options] * bool(java_options) + [f"-XX:SharedArchiveFile={archive}"] * bool(archive)
    return conf | ({JAVA_OPTIONS: " ".join(options)} if options else {})


def is_local(master: str) -> bool:
    """Return whether driver and executors are one process."""
    return master.startswith("local")


def bind_environment(master: str) -> dict[str, str]:
    # Spark's UI takes its address from this variable only.
    return {"SPARK_LOCAL_IP": LOOPBACK} if is_local(master) else {}


def submit_environment(base: Mapping[str, str], python: Path, java_home: Path) -> dict[str, str]:
    """Return the variables to set: one Python for driver and executors, and the Java that set-up found."""
    return {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "JAVA_HOME": str(java_home),
        # pyspark puts spark-submit beside its Python.
        "PATH": f"{python.parent}:{base.get('PATH', '')}",
        # Else glibc keeps a heap for each thread, and what RocksDB frees there stays with the process.
        "MALLOC_ARENA_MAX": "2",
        # The other memory pools of Arrow do not give freed memory back to the system.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PYTHONUNBUFFERED": "1",
    }
