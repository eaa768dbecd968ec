"""What the embedded broker decides without starting; tests/services/test_broker.py starts it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.drivers import processes
from switchyard.errors import SwitchyardError
from switchyard.local import broker_config, loopback
from switchyard.local.broker import Broker


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((loopback.HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_every_listener_is_on_loopback(tmp_path: Path) -> None:
    config = broker_config.build(9092, 9093, tmp_path)
    listeners = config["listeners"].split(",") + config["advertised.listeners"].split(",")
    assert all("://127.0.0.1:" in listener for listener in listeners)


def test_topics_are_never_made_by_accident(tmp_path: Path) -> None:
    assert broker_config.build(9092, 9093, tmp_path)["auto.create.topics.enable"] == "false"


def test_the_controller_port_is_read_back(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    assert broker_config.read_controller_port(config) is None
    config.write_text(broker_config.render(9092, 19093, tmp_path))
    assert broker_config.read_controller_port(config) == 19093


def test_the_cluster_id_is_drawn_once(tmp_path: Path) -> None:
    drawn = Broker(tmp_path / "broker", 9092).cluster_id()
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", drawn)
    assert Broker(tmp_path / "broker", 9092).cluster_id() == drawn


def test_the_command_names_the_config_and_bounds_the_heap(tmp_path: Path) -> None:
    command = Broker(tmp_path, 9092).command()
    assert command[-2:] == ["kafka.Kafka", str(tmp_path / "server.properties")]
    assert "-Xmx512m" in command


def test_a_taken_port_is_one_sentence_and_leaves_nothing(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(SwitchyardError, match=rf"^port {taken_port} is taken: .*SWITCHYARD_KAFKA_PORT"):
        Broker(tmp_path / "broker", taken_port).start()
    assert not (tmp_path / "broker").exists()


def test_a_listener_that_is_not_kafka_does_not_answer(taken_port: int) -> None:
    assert not loopback.answers_kafka(taken_port, timeout_seconds=0.2)


def test_a_pid_of_another_program_is_not_the_broker(tmp_path: Path) -> None:
    broker = Broker(tmp_path, 9092)
    broker.pid_file.write_text("1")
    assert not broker.is_running()


def test_stopping_what_does_not_run_is_fine(tmp_path: Path) -> None:
    Broker(tmp_path / "broker", 9092).stop()


def test_a_process_that_is_gone_has_no_command() -> None:
    assert processes.read_command(2**30) == ""


def test_a_child_that_ended_is_not_alive_even_before_it_is_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = processes.find_process(child.pid)
    assert process is not None
    processes.send([process], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while processes.find_process(child.pid):
        assert time.monotonic() < deadline
    child.communicate()
    processes.send([process], signal.SIGKILL)
