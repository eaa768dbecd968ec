"""Write the log that people read: plain words, in order, each line with its generation and swap."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Literal

from switchyard.layout import Layout
from switchyard.tables import store
from switchyard.wording import mask_emails

LogLevel = Literal["INFO", "WARNING", "ERROR"]
_console = logging.getLogger("switchyard")


def write_log(
    layout: Layout, msg: str, *, level: LogLevel = "INFO", generation: int | None = None, swap_id: str | None = None
) -> None:
    """Write one line into the table `logs` and to the log of the process."""
    text = mask_emails(msg)
    _console.log(logging.getLevelName(level), "%s", text)
    row = {"ts": datetime.now(UTC), "level": level, "msg": text, "generation": generation, "swapId": swap_id}
    store.append_rows(layout, "logs", [row])
