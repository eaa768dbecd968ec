"""Checks everything that Switchyard needs to run, and says how to fix what is wrong."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deltalake.exceptions import DeltaError

from switchyard.drivers.jars import broker_jars, delta_jars, object_store_jars, spark_jars
from switchyard.drivers.java import find_java
from switchyard.drivers.supervisor_state import find_supervisor
from switchyard.errors import SwitchyardError
from switchyard.health.checks import describe_spares, find_useless_spares
from switchyard.health.inputs import add_drivers, read_inputs
from switchyard.health.status_report import describe_status
from switchyard.kafka.control_topic import ControlTopic
from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.local import loopback
from switchyard.local.airflow import airflow_url
from switchyard.local.airflow_api import AirflowApi
from switchyard.local.kafka_settings import find_control_kafka, find_kafka
from switchyard.local.unexpected_errors import explain_unexpected
from switchyard.object_store import is_on_object_store
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap.history_store import HistoryStore
from switchyard.tables.installation import installation_id
from switchyard.tables.root_check import prove_commits
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.store import has_table, open_version

LEAST_FREE_GIB = 2
SET_ADDRESS = "set SWITCHYARD_KAFKA_BOOTSTRAP"
RESTART = "then `switchyard down` and `up`"
AIRFLOW_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_PACKAGES = {"spark-sql-kafka-0-10": "pyspark", "delta-spark": "delta-spark"}
"""Jars, and the Python packages that they have to fit"""
_CONNECTION = re.compile(r"\(connection (\w+)\)$")
_JAR = re.compile(r"(.+?)(?:_[\d.]+)*-(\d[\w.]*)\.jar")


@dataclass(frozen=True)
class Finding:
    check: str
    ok: bool
    finding: str
    remedy: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield each finding at once, so that a person sees the first ones while slow checks run."""
    check = partial(_guard, settings)
    running = find_supervisor(settings.workspace) is not None
    yield check("python", lambda: f"Python {sys.version.split()[0]}")
    yield check("java", lambda: f"Java {find_java().version} in {find_java().path}")
    yield check("jars", lambda: describe_jars([*spark_jars(), *delta_jars()], broker_jars()))
    yield check("disk", lambda: _disk(settings))
    if is_on_object_store(settings.root):
        yield check("object store", lambda: _object_store(settings))
    if settings.airflow_url is None:
        log = settings.workspace.process_logs / "api-server.log"
        yield _port("airflow port", settings.airflow_port, "SWITCHYARD_AIRFLOW_PORT", log, running)
    if settings.kafka_bootstrap is None:
        log = settings.workspace.broker / "broker.log"
        yield _port("kafka port", settings.kafka_port, "SWITCHYARD_KAFKA_PORT", log, running)
    if not running and settings.kafka_bootstrap is None:
        yield Finding("running", False, "Switchyard is not running", "start it with `switchyard up`")
        return
    yield from _kafka(settings)
    yield from _airflow(settings)
    yield check("tables", lambda: _tables(settings))
    yield check("generation", lambda: _generation(settings))
    if settings.spare:
        yield check("spare", lambda: _spare(settings))


def _guard(settings: Settings, check: str, look: Callable[[], str | Finding]) -> Finding:
    """Turn whatever a check raises into its finding, so that the checks after it still run."""
    try:
        found = look()
        return found if isinstance(found, Finding) else Finding(check, True, found)
    except SwitchyardError as error:
        return Finding(check, False, str(error), find_remedy(str(error)))
    except OSError as error:
        return _explain_os_error(settings, check, error)
    except Exception as error:
        try:
            return Finding(check, False, str(explain_unexpected(settings.workspace, error)), "read that log")
        except OSError as unwritable:
            return _explain_os_error(settings, check, unwritable)


def find_remedy(sentence: str) -> str:
    """Return what a sentence of ours says is to be done, which is its last part."""
    if sentence.endswith("?"):
        return "start the broker, or correct the address and the login in that connection"
    if found := _CONNECTION.search(sentence):
        return f"correct this setting of the connection {found[1]}; docs/security.md says what it may be"
    *before, last = re.split("; |: ", sentence)
    return last if before else f"read the process logs below the root, {RESTART}"


def _explain_os_error(settings: Settings, check: str, error: OSError) -> Finding:
    what = f"{error.strerror} at {error.filename}" if error.strerror and error.filename else str(error)
    home = settings.workspace.home
    if isinstance(error, PermissionError):
        remedy = f"give the user that runs Switchyard the right to read and write below {home}, or set SWITCHYARD_ROOT"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"make room at {home}"
    else:
        remedy = f"look at that file or address and at the process logs below {home}, {RESTART}"
    return Finding(check, False, f"this machine refuses what the check needs: {what}", remedy)


def _disk(settings: Settings) -> str:
    folder = settings.workspace.home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    if free < LEAST_FREE_GIB:
        raise SwitchyardError(f"only {free:.1f} GiB are free at {folder}: make room or set SWITCHYARD_ROOT elsewhere")
    if not os.access(folder, os.W_OK):
        raise SwitchyardError(f"{folder} cannot be written: change its owner or set SWITCHYARD_ROOT elsewhere")
    return f"{free:.0f} GiB free at {folder}"


def _object_store(settings: Settings) -> str:
    prove_commits(settings.layout)
    return f"{settings.root} refuses one of two commits of the same version; {len(object_store_jars())} jars for Spark"


def _port(check: str, port: int, setting: str, log: Path, running: bool) -> Finding:
    is_free = loopback.is_free(port)
    if running:
        remedy = f"read {log}, {RESTART}" if is_free else ""
        return Finding(check, not is_free, f"{port} is {'not ' if is_free else ''}in use by Switchyard", remedy)
    remedy = "" if is_free else f"stop what uses it or set {setting} to another port"
    return Finding(check, is_free, f"{port} is {'free' if is_free else 'taken by another program'}", remedy)


def describe_jars(used: Sequence[Path], broker: Sequence[Path]) -> str:
    """Name the versions. Raise when a jar does not fit the installed Python package."""
    # In this order, so that Spark's version of Kafka's client wins over the broker's.
    found = {match[1]: match[2] for jar in (*broker, *used) if (match := _JAR.fullmatch(jar.name))}
    spark, delta = (_fit(found, jar, package) for jar, package in _PACKAGES.items())
    client, server = (found.get(jar, "none") for jar in ("kafka-clients", "kafka-server"))
    return f"Spark {spark} with Kafka's client {client}, Delta {delta}, Kafka broker {server}"


def _fit(found: Mapping[str, str], jar: str, package: str) -> str:
    has, wanted = found.get(jar, "none"), version(package)
    if has != wanted:
        raise SwitchyardError(
            f"the jar {jar} is of version {has}, but the package {package} of {wanted}: run `make setup`"
        )
    return has


def _kafka(settings: Settings) -> Iterator[Finding]:
    # Cached, because asking Airflow for a connection takes seconds.
    find, check = cache(partial(find_kafka, settings)), partial(_guard, settings)
    login = check("kafka login", lambda: _log_in(find()))
    yield login
    if login.ok:
        yield check("topics", lambda: _topics(settings, find()))
    yield check("control topic", lambda: _control_topic(settings, find() if login.ok else None))


def _log_in(kafka: Mapping[str, str], remedy: str = SET_ADDRESS) -> str:
    address = kafka["bootstrap.servers"]
    if not any(_answers(one) for one in address.split(",")):
        raise SwitchyardError(f"no broker answers at {address}: start it, or {remedy}")
    with TopicReader(kafka) as reader:
        count = len(reader.list_joinable())
    how = kafka.get("sasl.mechanisms") or kafka.get("security.protocol", "PLAINTEXT")
    return f"{address} answers, {how}, {count} topics to see"


def _topics(settings: Settings, kafka: Mapping[str, str]) -> str:
    target = find_target(settings)
    topics = (target.usersTopic, target.accountsTopic)
    with TopicReader(kafka) as reader:
        for topic in topics:
            reader.require_readable(topic)
        counts = {topic: len(reader.partitions(topic)) for topic in topics}
    return "can be read, partitions: " + ", ".join(f"{topic} {count}" for topic, count in counts.items())


def find_target(settings: Settings) -> Target:
    """The active topics and join; before the first generation, those of the settings."""
    status_row = HistoryStore(settings.layout).status_row().target if has_table(settings.layout, "status") else None
    return status_row or settings.policy.defaults


def _control_topic(settings: Settings, data: Mapping[str, str] | None) -> str:
    """Read the topic and its group's offsets: a cluster may refuse either. `data` is None if it cannot be reached."""
    kafka, topic = find_control_kafka(settings), settings.control_topic
    is_elsewhere = data is not None and kafka["bootstrap.servers"] != data["bootstrap.servers"]
    where = " on its own cluster" if is_elsewhere else ""
    _log_in(kafka, "correct the connection kafka_control" if is_elsewhere else SET_ADDRESS)
    with TopicReader(kafka) as reader:
        reader.require_readable(topic)
        count = len(reader.partitions(topic))
    with ControlTopic(kafka, topic, installation_id(settings.layout)) as control:
        control.committed_offsets()
    return f"{topic} can be read{where}, partitions: {count}"


def _answers(address: str) -> bool:
    host, _, port = address.strip().rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except (OSError, ValueError):
        return False
    return True


def _airflow(settings: Settings) -> Iterator[Finding]:
    url = airflow_url(settings)
    try:
        health = AirflowApi.of(settings).read_health()
    except (SwitchyardError, ValueError):
        remedy = f"read {settings.workspace.process_logs / 'api-server.log'}, {RESTART}"
        if settings.airflow_url is not None:
            remedy = "look whether its API server runs, or correct SWITCHYARD_AIRFLOW_URL"
        yield Finding("airflow", False, f"Airflow does not answer at {url}", remedy)
        return
    yield Finding("airflow", True, f"{url} answers")
    yield from judge_airflow(health, None if settings.airflow_url else settings.workspace.process_logs)


def judge_airflow(health: Mapping[str, Any], logs: Path | None) -> Iterator[Finding]:
    """What Airflow's own health report says about its parts, whose logs are in `logs`; None if they run elsewhere."""
    for name in AIRFLOW_PARTS:
        part = name.removeprefix("meta").replace("_", " ")
        state = (health.get(name) or {}).get("status") or "unknown"
        remedy = "" if state == "healthy" else _advise(name, logs)
        yield Finding(f"airflow {part}", state == "healthy", str(state), remedy)


def _advise(name: str, logs: Path | None) -> str:
    again = "then start that part again" if logs is None else RESTART
    if name == "metadatabase":
        return f"check that it runs and has disk space, {again}"
    return f"read {'its log' if logs is None else logs / (name.replace('_', '-') + '.log')}, {again}"


def _tables(settings: Settings) -> str:
    there = [name for name in SCHEMAS if has_table(settings.layout, name)]
    for name in there:
        require_table(settings.layout, name)
    return f"{len(there)} of {len(SCHEMAS)} tables exist at {settings.layout.under('tables')}"


def require_table(layout: Layout, name: str) -> None:
    """Open the table; its last commit may be damaged, or its files missing."""
    try:
        open_version(layout, name, None)
    except DeltaError as error:
        raise SwitchyardError(
            f"the table {name} at {layout.table(name)} cannot be opened ({type(error).__name__}): restore it from a "
            "copy, or move it away to start with an empty one"
        ) from None


def _generation(settings: Settings) -> Finding:
    status = describe_status(settings)
    number = f"generation {status['generation']}: " if "generation" in status else ""
    remedy = "" if status["healthy"] else "open the run of switchyard_generation in Airflow and read its log"
    return Finding("generation", status["healthy"], f"{number}{status['reason']}", remedy)


def _spare(settings: Settings) -> Finding:
    """No spare is normal during a swap; the health DAG ends one that hangs."""
    inputs = add_drivers(read_inputs(settings), settings, {})
    is_well = not find_useless_spares(inputs, settings.limits)
    remedy = "" if is_well else "it hangs: see the log of switchyard_spare; switchyard_health ends it"
    return Finding("spare", is_well, describe_spares(inputs), remedy)
