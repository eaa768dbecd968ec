"""Run one step of the set-up: say what it does, how long it took, and in one sentence why it failed."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from switchyard.errors import SwitchyardError

_DISK_FULL = (os.strerror(errno.ENOSPC), f"os error {errno.ENOSPC})")
_UNREACHABLE = (
    "Failed to fetch",
    "error sending request",
    "dns error",
    "Connection refused",
    "Could not connect",
    "Temporary failure",
    "Failed to establish a new connection",
    "Max retries exceeded",
    "timed out",
    "Could not find a version that satisfies the requirement uv",
)
_OWN_SENTENCE = "switchyard: "


def run_step(
    label: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Write the output of the step to the log, for those who look into a failure."""
    print(f"set-up: {label} … ", end="", flush=True)
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        ).returncode
    print(f"{'done' if status == 0 else 'failed'} in {time.monotonic() - started:.1f} s", flush=True)
    if status != 0:
        raise SwitchyardError(explain_failure(label, log.read_text(errors="replace"), log))


def explain_failure(label: str, output: str, log: Path) -> str:
    if any(word in output for word in _DISK_FULL):
        return f"the disk is full while {label}: free some space and run it again."
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(_OWN_SENTENCE):
            return line.removeprefix(_OWN_SENTENCE)
    if any(word in output for word in _UNREACHABLE):
        return f"{label} failed: the package registry cannot be reached: check the network (see {log})."
    return f"{label} failed: {lines[-1] if lines else 'no reason given'} (see {log})"
