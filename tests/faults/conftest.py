"""The seed of the faults, and a disk that can be filled."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.local.broker import Broker
from tests.brokers import running_broker

SEED = int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(10**6))
SMALL_DISK_MEGABYTES = 48


def pytest_report_header() -> str:
    return f"faults: FAULT_SEED={SEED}"


@pytest.fixture
def seed() -> int:
    return SEED


@pytest.fixture(scope="session")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that may be stopped and frozen: others use the shared one."""
    with running_broker(tmp_path_factory.mktemp("own-broker")) as broker:
        yield broker


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of a few megabytes, or as many as the test asks for."""
    folder = tmp_path / "disk"
    folder.mkdir()
    megabytes = getattr(request, "param", SMALL_DISK_MEGABYTES)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "switchyard-test", str(folder)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if answer.returncode != 0:
        pytest.skip(f"no file system may be mounted here: {answer.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
