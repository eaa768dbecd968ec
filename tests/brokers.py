"""A real broker for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from switchyard.local import loopback
from switchyard.local.broker import Broker


@contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    broker = Broker(folder, loopback.pick_free_port())
    broker.start()
    broker.wait_until_ready(60)
    yield broker
    broker.stop()
