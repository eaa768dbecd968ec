"""What the doctor makes of addresses."""

from __future__ import annotations

import socket

import pytest

from switchyard.local import loopback
from switchyard.local.doctor import _answers


def test_a_broker_that_listens_answers() -> None:
    with socket.create_server((loopback.HOST, 0)) as server:
        assert _answers(f" {loopback.HOST}:{server.getsockname()[1]}")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:1"])
def test_an_address_where_nobody_is_does_not(address: str) -> None:
    assert not _answers(address)
