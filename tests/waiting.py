"""Waiting for something to become true, instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], deadline_seconds: float = 90, every_seconds: float = 0.2) -> T:
    """The first true value that `look` returns; at the deadline it fails with the last thing it saw."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {deadline_seconds:g} s; last seen: {seen!r}"
        time.sleep(every_seconds)
