"""The streaming job with a data gate that takes seconds. How often the driver shows life meanwhile is in LIFE_FILE."""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path
from typing import Any

from switchyard.layout import PROJECT
from switchyard.settings import load_settings
from switchyard.stream import promotion

GATE_SECONDS = 6.0
examine = promotion.examine


def examine_slowly(*arguments: Any) -> Any:
    generation = arguments[2].generation
    pulse, seen = load_settings().workspace.driver_pid(generation), set()
    deadline = time.monotonic() + GATE_SECONDS
    while time.monotonic() < deadline:
        seen.add(pulse.stat().st_mtime_ns)
        time.sleep(0.1)
    Path(os.environ["LIFE_FILE"]).write_text(str(len(seen)))
    return examine(*arguments)


promotion.examine = examine_slowly
runpy.run_path(str(PROJECT / "jobs" / "stream_generation.py"), run_name="__main__")
