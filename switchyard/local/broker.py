"""The embedded broker: a real Kafka in KRaft mode, one node, on loopback only, with its data in one folder.

Speaks to the broker only to see that it answers; everything else goes through switchyard.kafka.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

from switchyard.drivers.jars import broker_jars
from switchyard.drivers.java import find_java
from switchyard.errors import SwitchyardError
from switchyard.local import broker_config, loopback
from switchyard.local.server import Server, last_line


class Broker(Server):
    name = "broker"

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder)
        self.port = port
        self.config = self.command_line_path = self.folder / "server.properties"

    @property
    def bootstrap(self) -> str:
        return f"{loopback.HOST}:{self.port}"

    def command(self) -> list[str]:
        options = ["-Xmx512m", "-Xms128m", "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError"]
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [*self._java(), *options, logging, "kafka.Kafka", str(self.config)]

    def prepare(self) -> None:
        loopback.require_free(self.port, "SWITCHYARD_KAFKA_PORT")
        self.format_storage()

    def is_answering(self) -> bool:
        return loopback.answers_kafka(self.port)

    def format_storage(self) -> None:
        """Format the folder once: a second call keeps the cluster id and the data."""
        self._write_config()
        if (self.data / "meta.properties").exists():
            return
        command = [*self._java(), "kafka.tools.StorageTool", "format", "-t", self.cluster_id()]
        answer = subprocess.run([*command, "-c", str(self.config)], capture_output=True, text=True)
        if answer.returncode != 0:
            raise SwitchyardError(f"the broker's folder could not be formatted: {last_line(answer.stderr)}")

    def cluster_id(self) -> str:
        if not self.cluster_file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.cluster_file.write_text(_draw_cluster_id())
        return self.cluster_file.read_text()

    def _java(self) -> list[str]:
        return [str(find_java().executable), "-cp", f"{broker_jars()[0].parent}/*"]

    def _write_config(self) -> None:
        """Write the configuration at each start, because the ports may have changed."""
        self.data.mkdir(parents=True, exist_ok=True)
        kept = broker_config.read_controller_port(self.config)
        controller_port = kept if kept and loopback.is_free(kept) else loopback.pick_free_port()
        self.config.write_text(broker_config.render(self.port, controller_port, self.data))
        (self.folder / "log4j2.properties").write_text(broker_config.LOG4J2)


def _draw_cluster_id() -> str:
    """Draw an id as Kafka does; not one that begins with a dash, which StorageTool would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
