"""Whether the process behind a kept pid is still the one that was started: pids are used again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def read_command(pid: int) -> str:
    """The command line of a process; empty when there is none, or when it has ended and nobody has asked."""
    proc = Path("/proc")
    if (proc / "self").exists():
        try:
            return (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    answer = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True)
    return answer.stdout.strip()


def is_alive(pid: int) -> bool:
    """False once nothing of it runs any more. A process that is ending has lost its command line, but may
    still hold its ports and files; a zombie without other threads holds nothing."""
    proc = Path("/proc")
    if (proc / "self").exists():
        try:
            state = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
            threads = sum(1 for _ in (proc / str(pid) / "task").iterdir())
        except (OSError, IndexError):
            return False
        return state not in "ZX" or threads > 1
    answer = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True)
    return answer.returncode == 0 and not answer.stdout.strip().startswith("Z")


def age_seconds(pid: int) -> float:
    """How long ago a process was started; 0 when there is none."""
    proc = Path("/proc")
    if (proc / "self").exists():
        try:
            ticks = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
            return float((proc / "uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return 0.0
    answer = subprocess.run(["ps", "-o", "etime=", "-p", str(pid)], capture_output=True, text=True)
    return parse_elapsed(answer.stdout.strip())


def parse_elapsed(text: str) -> float:
    """`[[days-]hours:]minutes:seconds`, as ps writes it."""
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in filter(None, clock.split(":")):
        seconds = seconds * 60 + float(part)
    return seconds + 86_400 * float(days or 0)


def boot_id() -> str:
    """Names this boot of the machine: process ids that were kept mean nothing after the next one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
