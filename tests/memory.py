"""How much memory a call takes, measured in a process that has used none for anything else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def measure(function: Callable[..., Any], *given: Any) -> tuple[Any, int]:
    """What the function returns, and the most MiB that it took beyond its imports. On Linux only."""
    context = get_context("forkserver")
    # Imported once, by the process that all others are copies of.
    context.set_forkserver_preload([function.__module__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, function, *given).result(120)


def _measure(function: Callable[..., Any], *given: Any) -> tuple[Any, int]:
    before = _read("VmRSS")
    # The peak begins again at what is used now.
    Path("/proc/self/clear_refs").write_text("5")
    result = function(*given)
    return result, (_read("VmHWM") - before) // 1024


def _read(name: str) -> int:
    """In KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
