"""One request at a time writes to Airflow's database, where that database is SQLite.

Airflow's API server notes each action of a user from its event loop, and lets go of what a request has written by way
of the same loop. With SQLite's one lock the two can wait for each other: the loop for the lock of a request, and that
request for the loop, until SQLite gives up and every task that reported meanwhile has failed. Requests that may write
take turns here, before they reach either. Another database locks rows, and needs none of this.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

READING = frozenset({"GET", "HEAD", "OPTIONS"})


class WriteTurns:
    """ASGI middleware; requests below `apart` write elsewhere and do not wait."""

    def __init__(self, app: ASGIApp, apart: str) -> None:
        self._app = app
        self._apart = apart
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._may_write(scope):
            await self._app(scope, receive, send)
            return
        # A client that is slow to send holds up nobody: its turn comes when all of it is here.
        body = await _read_body(receive)
        async with self._turn:
            await self._app(scope, _again(body, receive), send)

    def _may_write(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] in READING:
            return False
        path = str(scope["path"])
        return path != self._apart and not path.startswith(f"{self._apart}/")


async def _read_body(receive: Receive) -> list[Message]:
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    left = iter(messages)

    async def give() -> Message:
        message = next(left, None)
        return await receive() if message is None else message

    return give
