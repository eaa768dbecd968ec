"""Checks of single values that people write: topic names and times. Each error says what is wrong and what to do."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from switchyard.errors import InputError
from switchyard.wording import shorten

FIRST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def parse_moment(start: str) -> datetime:
    """An ISO timestamp; one without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(start)
    except ValueError:
        raise InputError(
            f"start {shorten(start)!r} is none of latest, earliest, resume and an ISO timestamp like "
            "2026-01-31T12:00:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment < FIRST_MOMENT:
        raise InputError(f"start {start!r} is before 1970; use earliest to read everything")
    return moment


def check_topic_name(name: str) -> None:
    if not _TOPIC_NAME.fullmatch(name) or name in (".", "..") or name.startswith("__"):
        raise InputError(
            f"{shorten(name)!r} is not a topic name that may be joined: 1 to 249 of the characters A-Z a-z 0-9 . _ - "
            "are allowed, and neither '.', '..' nor a name beginning with '__'"
        )
