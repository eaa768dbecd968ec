"""The two files that the broker is started with: text without I/O, except for reading the controller port back."""

from __future__ import annotations

import re
from pathlib import Path

from switchyard.local.loopback import HOST

_CONTROLLER = re.compile(r"^controller\.quorum\.voters=1@[^:]+:(\d+)$", re.MULTILINE)

# The process's output goes to its log file, so warnings go to the console.
LOG4J2 = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
"""


def render(port: int, controller_port: int, data: Path) -> str:
    return "".join(f"{key}={value}\n" for key, value in build(port, controller_port, data).items())


def build(port: int, controller_port: int, data: Path) -> dict[str, str]:
    """Return the properties of a broker and controller in one process; one node keeps one copy of everything."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "default.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def read_controller_port(config: Path) -> int | None:
    try:
        match = _CONTROLLER.search(config.read_text())
    except OSError:
        return None
    return int(match.group(1)) if match else None
