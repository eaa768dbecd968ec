"""Ports of this machine's loopback interface: whether one is free, and whether Kafka answers behind it."""

from __future__ import annotations

import socket
import struct

from switchyard.errors import SwitchyardError

HOST = "127.0.0.1"
_API_VERSIONS = 18


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set this too: a port in TIME_WAIT after a server has ended counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int, setting: str) -> None:
    if not is_free(port):
        raise SwitchyardError(f"port {port} is taken: stop what uses it or set {setting} to another port.")


def pick_free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def answers_kafka(port: int, timeout_seconds: float = 2) -> bool:
    """Return whether an ApiVersions request is answered. A broker that starts accepts connections, but is silent."""
    correlation, client = 1, b"switchyard"
    body = struct.pack(">hhih", _API_VERSIONS, 0, correlation, len(client)) + client
    try:
        with socket.create_connection((HOST, port), timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 10 and struct.unpack(">iih", answer)[1:] == (correlation, 0)
