"""The embedded broker: a real Kafka in KRaft mode, one node, on loopback only, with its data in one folder.

Speaks to the broker only to see that it answers; everything else goes through switchyard.kafka.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

from psutil import Process

from switchyard.drivers import processes
from switchyard.drivers.jars import broker_jars
from switchyard.drivers.java import find_java
from switchyard.errors import SwitchyardError
from switchyard.local import broker_config, loopback


class Broker:
    """One broker below one folder. Any process may stop it: the pid is kept beside the data."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder.absolute()
        self.port = port
        self.config = self.folder / "server.properties"
        self.data = self.folder / "data"
        self.log = self.folder / "broker.log"
        self.pid_file = self.folder / "broker.pid"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{loopback.HOST}:{self.port}"

    def command(self) -> list[str]:
        options = ["-Xmx512m", "-Xms128m", "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError"]
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [*self._java(), *options, logging, "kafka.Kafka", str(self.config)]

    def format_storage(self) -> None:
        """Once per folder: a second call keeps the cluster id and the data."""
        self._write_config()
        if (self.data / "meta.properties").exists():
            return
        command = [*self._java(), "kafka.tools.StorageTool", "format", "-t", self.cluster_id()]
        answer = subprocess.run([*command, "-c", str(self.config)], capture_output=True, text=True)
        if answer.returncode != 0:
            raise SwitchyardError(f"the broker's folder could not be formatted: {_last_line(answer.stderr)}")

    def cluster_id(self) -> str:
        kept = self.folder / "cluster.id"
        if not kept.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(_draw_cluster_id())
        return kept.read_text()

    def start(self) -> None:
        """Starts the process and returns at once; `wait_until_ready` says when it answers."""
        if self.is_running():
            return
        loopback.require_free(self.port, "SWITCHYARD_KAFKA_PORT")
        self.format_storage()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.pid_file.write_text(str(self._process.pid))

    def is_running(self) -> bool:
        return self._find_pid() is not None

    def wait_until_ready(self, deadline_seconds: float = 60) -> None:
        """Returns when the broker answers a request; raises when it has ended or the deadline has passed."""

        def has_answered_or_ended() -> bool:
            return loopback.answers_kafka(self.port) or not self.is_running()

        if not processes.wait_until(has_answered_or_ended, deadline_seconds):
            raise SwitchyardError(
                f"the broker on port {self.port} did not answer in {deadline_seconds:g} s: see {self.log}."
            )
        if not self.is_running():
            raise SwitchyardError(f"the broker ended at once: {self._last_log_line()} (see {self.log}).")

    def stop(self, deadline_seconds: float = 30) -> None:
        """Asks the broker to end, and ends it if it has not by the deadline. Fine when it is not running."""
        pid = self._find_pid()
        running = processes.find_process(pid) if pid is not None else None
        if running is not None:
            processes.end(lambda: [] if self._has_ended(running) else [running], deadline_seconds)
        self.pid_file.unlink(missing_ok=True)

    def _has_ended(self, running: Process) -> bool:
        """Also reaps it when it is a child of this process. Ended means that port and files are free."""
        if self._process is not None and self._process.pid == running.pid:
            return self._process.poll() is not None
        return not processes.is_alive(running)

    def _find_pid(self) -> int | None:
        """The broker's pid, if that process is alive and is the broker of this folder."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if str(self.config) in processes.read_command(pid) else None

    def _java(self) -> list[str]:
        return [str(find_java().executable), "-cp", f"{broker_jars()[0].parent}/*"]

    def _write_config(self) -> None:
        """Anew at each start: the ports may have changed, the node and its data have not."""
        self.data.mkdir(parents=True, exist_ok=True)
        kept = broker_config.read_controller_port(self.config)
        controller_port = kept if kept and loopback.is_free(kept) else loopback.pick_free_port()
        self.config.write_text(broker_config.render(self.port, controller_port, self.data))
        (self.folder / "log4j2.properties").write_text(broker_config.LOG4J2)

    def _last_log_line(self) -> str:
        return _last_line(self.log.read_text(errors="replace")) if self.log.exists() else "it wrote no log"


def _draw_cluster_id() -> str:
    """A random id as Kafka writes them. One that begins with a dash would be taken for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
