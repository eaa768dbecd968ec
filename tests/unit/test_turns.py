"""Requests that may write take turns; the rest, and whoever is slow to send, hold up nobody."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from switchyard.airflow.turns import WriteTurns


class Application:
    """Counts who is inside at once, and notes what it was sent."""

    def __init__(self) -> None:
        self.inside = 0
        self.most_inside = 0
        self.bodies: list[bytes] = []
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
            self.bodies.append(body)
            await self.go_on.wait()
            if scope["path"] == "/fails":
                raise RuntimeError("as the server would")
        finally:
            self.inside -= 1


async def send_nothing(message: Message) -> None:
    raise AssertionError(message)


def request(method: str, path: str = "/api/v2/dags") -> Scope:
    return {"type": "http", "method": method, "path": path}


def body_of(*parts: bytes) -> Receive:
    left = list(parts)

    async def receive() -> Message:
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    return receive


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def most_inside(*scopes: Scope) -> int:
    async def run() -> int:
        app = Application()
        turns = WriteTurns(app, "/switchyard")
        asked = [asyncio.create_task(turns(scope, body_of(b"{}"), send_nothing)) for scope in scopes]
        await settle()
        app.go_on.set()
        await asyncio.gather(*asked, return_exceptions=True)
        assert len(app.bodies) == len(scopes), "every request is answered"
        return app.most_inside

    return asyncio.run(run())


def test_writers_are_let_in_one_by_one() -> None:
    assert most_inside(*map(request, ("POST", "PATCH", "PUT", "DELETE"))) == 1


def test_one_that_fails_gives_its_turn_to_the_next() -> None:
    assert most_inside(request("POST", "/fails"), request("POST"), request("POST")) == 1


@pytest.mark.parametrize("path", ["/switchyard", "/switchyard/api/commands"])
def test_readers_and_the_page_do_not_wait(path: str) -> None:
    scopes = [request("POST"), request("GET"), request("HEAD"), request("POST", path), request("POST", path)]
    assert most_inside(*scopes) == len(scopes)


def test_a_name_that_only_begins_like_the_page_waits() -> None:
    assert most_inside(request("POST", "/switchyard-other"), request("POST")) == 1


def test_a_slow_sender_holds_up_nobody_and_arrives_whole() -> None:
    async def run() -> list[bytes]:
        app = Application()
        app.go_on.set()
        turns = WriteTurns(app, "/switchyard")
        rest = asyncio.Event()
        parts = body_of(b"sl", b"ow")
        first = True

        async def slowly() -> Message:
            nonlocal first
            if not first:
                await rest.wait()
            first = False
            return await parts()

        slow = asyncio.create_task(turns(request("POST"), slowly, send_nothing))
        await settle()
        await turns(request("POST"), body_of(b"quick"), send_nothing)
        rest.set()
        await slow
        return app.bodies

    assert asyncio.run(run()) == [b"quick", b"slow"]
