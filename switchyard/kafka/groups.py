"""The names of all consumer groups, which some clusters allow only under a prefix."""

from __future__ import annotations

from switchyard.settings import load_settings


def name_group(purpose: str) -> str:
    return f"{load_settings().group_prefix}{purpose}"
