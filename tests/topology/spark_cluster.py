"""A real Spark standalone master with two workers, each started as the containers of docker-compose.yaml start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from switchyard.drivers.java import find_java
from switchyard.layout import PROJECT
from switchyard.local import loopback
from tests.waiting import eventually

# Room for four drivers with an executor on each worker: two during a swap, a spare, and an audit. They are not used up.
CORES, MEMORY = "4", "4g"
WORKERS = 2


@dataclass(frozen=True)
class SparkCluster:
    master_port: int
    page_port: int
    worker_pages: tuple[int, ...]
    master_life: ExitStack
    folder: Path

    def start_master(self) -> None:
        ports = ["--port", str(self.master_port), "--webui-port", str(self.page_port)]
        running = _running("master.Master", ["--host", loopback.HOST, *ports], self.folder / "master.log")
        self.master_life.enter_context(running)

    def restart_master(self) -> None:
        """The new one knows no application from before; the workers come back to it and end their executors."""
        self.master_life.close()
        self.start_master()
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        eventually(lambda: _count_alive(self) == WORKERS, 90)

    @property
    def master(self) -> str:
        return f"spark://{loopback.HOST}:{self.master_port}"

    def applications(self) -> dict[str, str]:
        """The applications that run now: name and id."""
        return {app["name"]: app["id"] for app in ask(self.page_port, "/json/")["activeapps"]}

    def executors(self, application: str) -> list[list[str]]:
        """For each worker, the ids of the executors of an application that run on it."""
        return [
            [str(part["id"]) for part in ask(page, "/json/")["executors"] if part["appid"] == application]
            for page in self.worker_pages
        ]


def ask(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://{loopback.HOST}:{port}{path}", timeout=10) as answer:
        return json.load(answer)


@contextmanager
def running_spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    ports = [loopback.pick_free_port() for _ in range(2 + WORKERS)]
    host = ["--host", loopback.HOST]
    with ExitStack() as master_life, ExitStack() as running:
        cluster = SparkCluster(ports[0], ports[1], tuple(ports[2:]), master_life, folder)
        cluster.start_master()
        for number, page in enumerate(cluster.worker_pages, 1):
            worker = [*host, "--webui-port", str(page), cluster.master]
            log = folder / f"worker-{number}.log"
            running.enter_context(_running("worker.Worker", worker, log, _places(folder / f"worker-{number}")))
        cluster.wait_for_workers()
        yield cluster


@contextmanager
def _running(part: str, arguments: list[str], log: Path, more: Mapping[str, str] | None = None) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(PROJECT / "docker" / "spark-class"), f"org.apache.spark.deploy.{part}", *arguments],
            env=_environment(os.environ) | dict(more or {}),
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    return {
        **base,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{base['PATH']}",
        "JAVA_HOME": str(find_java().path),
        "SPARK_LOCAL_IP": loopback.HOST,
        "SPARK_DAEMON_MEMORY": "256m",
    }


def _places(folder: Path) -> dict[str, str]:
    """What the containers say in docker-compose.yaml, with other places and sizes."""
    said: dict[str, str] = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text())["services"]["spark-worker"][
        "environment"
    ]
    ours = {
        "SPARK_WORKER_CORES": CORES,
        "SPARK_WORKER_MEMORY": MEMORY,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    assert ours.keys() <= said.keys()
    return ours | {"SPARK_WORKER_OPTS": said["SPARK_WORKER_OPTS"]}


def _count_alive(cluster: SparkCluster) -> int:
    try:
        return int(ask(cluster.page_port, "/json/")["aliveworkers"])
    except OSError:
        return 0
