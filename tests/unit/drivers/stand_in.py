"""A process that only looks like a spare driver, and needs no Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from switchyard.drivers.detached_process import DetachedProcess, start_detached
from switchyard.drivers.hand_off import HandOff
from switchyard.drivers.spares import Order
from switchyard.layout import Workspace
from tests.waiting import eventually

FINGERPRINT = {"code": "a", "settings": "b"}
ORDER = Order(generation=7, kafkaProperties=Path("/kafka"), swapId="swap-7")

# Offers itself, and works on its order by waiting for its end.
STAND_IN = """
import sys, time
from pathlib import Path
from switchyard.drivers.hand_off import HandOff, describe_place
from switchyard.drivers.spares import Offer
import os
here = HandOff(Path(sys.argv[2]))
here.pulse.write_text(str(os.getpid()))
here.offer(Offer(pid=os.getpid(), session=os.getsid(0), place=describe_place(), fingerprint=here.read_fingerprint()))
print("ready", flush=True)
while here.accept() is None:
    time.sleep(0.01)
print("working", flush=True)
time.sleep(600)
"""


@contextmanager
def stand_in(
    workspace: Workspace, fingerprint: Mapping[str, str] = FINGERPRINT, code: str = STAND_IN
) -> Iterator[tuple[HandOff, DetachedProcess]]:
    hand_off = HandOff.create(workspace, fingerprint)
    command = [sys.executable, "-c", code, "--spare", str(hand_off.folder)]
    started = start_detached(hand_off.folder, command, os.environ | {"PYTHONPATH": os.getcwd()})
    process = DetachedProcess(hand_off.folder, started.pid)
    try:
        if code == STAND_IN:
            eventually(lambda: hand_off.read_offer() or process.poll() is not None)
        yield hand_off, process
    finally:
        process.end()
        started.wait()
