"""How values read in sentences for people."""

from __future__ import annotations

from datetime import timedelta


def describe_time(time: timedelta) -> str:
    seconds = int(time.total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
