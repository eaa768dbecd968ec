"""Looks at everything that must be right for Switchyard to run, and says how to mend what is not."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from switchyard.errors import SwitchyardError
from switchyard.health import describe_spares, find_useless_spares
from switchyard.inspection import look, see_drivers
from switchyard.kafka.topics import TopicReader
from switchyard.local import loopback
from switchyard.local.airflow import airflow_url
from switchyard.local.jars import broker_jars, delta_jars, object_store_jars, spark_jars
from switchyard.local.java import find_java
from switchyard.local.kafka_settings import find_kafka
from switchyard.local.state import find_supervisor
from switchyard.object_store import is_on_object_store
from switchyard.overview import describe_status
from switchyard.settings import Settings
from switchyard.tables.proof import prove_commits
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.store import has_table

LEAST_FREE_GIB = 2


@dataclass(frozen=True)
class Finding:
    check: str
    ok: bool
    finding: str
    remedy: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Each check in turn, so that a person sees the first ones while the slow ones run."""
    running = find_supervisor(settings.workspace) is not None
    yield _guard("python", lambda: _python())
    yield _guard("java", lambda: f"Java {find_java().version} in {find_java().path}")
    yield _guard("jars", lambda: f"{len(spark_jars() + delta_jars())} for Spark, {len(broker_jars())} for the broker")
    yield _guard("disk", lambda: _disk(settings))
    if is_on_object_store(settings.root):
        yield _guard("object store", lambda: _object_store(settings))
    yield _port("airflow port", settings.airflow_port, "SWITCHYARD_AIRFLOW_PORT", running)
    if settings.kafka_bootstrap is None:
        yield _port("kafka port", settings.kafka_port, "SWITCHYARD_KAFKA_PORT", running)
    if not running and settings.kafka_bootstrap is None:
        yield Finding("running", False, "Switchyard is not running", "start it with `switchyard up`")
        return
    yield _guard("broker", lambda: _broker(settings))
    yield _guard("airflow", lambda: _airflow(settings))
    yield _guard("tables", lambda: _tables(settings))
    yield _generation(settings)
    if settings.spare:
        yield _spare(settings)


def _guard(check: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(check, True, look())
    except SwitchyardError as error:
        finding, _, remedy = str(error).partition(": ")
        return Finding(check, False, str(error), remedy or finding)
    except OSError as error:
        return Finding(check, False, str(error), "look at the process logs below the root")


def _python() -> str:
    return f"Python {sys.version.split()[0]}"


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


def _port(check: str, port: int, setting: str, running: bool) -> Finding:
    is_free = loopback.is_free(port)
    if running:
        return Finding(check, not is_free, f"{port} is {'not ' if is_free else ''}in use by Switchyard", "see `status`")
    remedy = "" if is_free else f"stop what uses it or set {setting} to another port"
    return Finding(check, is_free, f"{port} is {'free' if is_free else 'taken by another program'}", remedy)


def _broker(settings: Settings) -> str:
    kafka = find_kafka(settings)
    if not any(_answers(address) for address in kafka["bootstrap.servers"].split(",")):
        raise SwitchyardError(f"no broker answers at {settings.bootstrap}: start it, or set SWITCHYARD_KAFKA_BOOTSTRAP")
    topics = (settings.users_topic, settings.accounts_topic)
    with TopicReader(kafka) as reader:
        for topic in topics:
            reader.require_readable(topic)
        counts = {topic: len(reader.partitions(topic)) for topic in topics}
    return f"{settings.bootstrap}, partitions: " + ", ".join(f"{topic} {count}" for topic, count in counts.items())


def _answers(address: str) -> bool:
    host, _, port = address.strip().rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except (OSError, ValueError):
        return False
    return True


def _airflow(settings: Settings) -> str:
    url = airflow_url(settings)
    try:
        with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5) as answer:
            return f"{url} answers {answer.status}"
    except (urllib.error.URLError, TimeoutError):
        raise SwitchyardError(f"Airflow does not answer at {url}: see the process logs below the root") from None


def _tables(settings: Settings) -> str:
    there = [name for name in SCHEMAS if has_table(settings.layout, name)]
    return f"{len(there)} of {len(SCHEMAS)} tables exist at {settings.layout.under('tables')}"


def _generation(settings: Settings) -> Finding:
    status = describe_status(settings)
    number = f"generation {status['generation']}: " if "generation" in status else ""
    remedy = "" if status["healthy"] else "open the run of switchyard_generation in Airflow and read its log"
    return Finding("generation", status["healthy"], f"{number}{status['reason']}", remedy)


def _spare(settings: Settings) -> Finding:
    """That there is none is normal during a swap; one that hangs is ended by health."""
    sight = see_drivers(look(settings), settings, {})
    is_well = not find_useless_spares(sight, settings.limits)
    remedy = "" if is_well else "it hangs: see the log of switchyard_spare; switchyard_health ends it"
    return Finding("spare", is_well, describe_spares(sight), remedy)
