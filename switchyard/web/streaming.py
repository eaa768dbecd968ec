"""Changes as server-sent events; `status` carries the position after it, so that a reconnect goes on there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi.concurrency import run_in_threadpool
from fastapi.sse import format_sse_event

from switchyard.deadline import Deadline
from switchyard.errors import SwitchyardError
from switchyard.health.read_model import ReadModel
from switchyard.stream.failures import explain_failure
from switchyard.tables.changes import ChangeEvent, Position, format_position
from switchyard.web.access import Viewer, mask_row
from switchyard.web.documents import dump

POLL_SECONDS = 0.2
HEARTBEAT_SECONDS = 5.0
# The stream ends after this time: the browser connects again by itself, and its login is checked again.
LIFE_SECONDS = 300.0


async def stream_changes(
    model: ReadModel, viewer: Viewer, start: Position | None, names: Sequence[str], life_seconds: float = LIFE_SECONDS
) -> AsyncIterator[bytes]:
    position: Position = start if start is not None else await run_in_threadpool(model.changes.now)
    yield format_event("status", await run_in_threadpool(model.status), position, retry=1000)
    end, heartbeat = Deadline(life_seconds), Deadline(HEARTBEAT_SECONDS)
    while not end.has_passed and not _is_ending():
        try:
            events, position = await run_in_threadpool(model.changes.after, position, names)
        except (SwitchyardError, OSError) as error:
            # Stay connected: the next round may be able to read the tables again.
            events = [ChangeEvent("trouble", {"detail": explain_failure(error, "the tables cannot be read")})]
            await asyncio.sleep(1)
        if events or heartbeat.has_passed:
            heartbeat.restart(HEARTBEAT_SECONDS)
            for event in events:
                yield format_event(event.kind, _mask(event.data, viewer))
            # Only the last event carries the position: a reader that is cut off before it gets all of them again.
            yield format_event("status", await run_in_threadpool(model.status), position)
        await asyncio.sleep(POLL_SECONDS)


def _mask(data: dict[str, Any], viewer: Viewer) -> dict[str, Any]:
    if viewer.sees_addresses or "rows" not in data:
        return data
    return data | {"rows": [mask_row(row) for row in data["rows"]]}


def format_event(
    name: str, document: dict[str, Any], position: Position | None = None, retry: int | None = None
) -> bytes:
    # ASCII, as FastAPI would take a line separator within a value (U+2028, for instance) for the end of the data.
    data = dump(document, ensure_ascii=True)
    return format_sse_event(event=name, data_str=data, id=format_position(position) if position else None, retry=retry)


def _is_ending() -> bool:
    """Return whether the server was asked to stop: it waits for open answers, and this one would go on."""
    # Uvicorn has no API for this, but its signal handler is a method of the server.
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
