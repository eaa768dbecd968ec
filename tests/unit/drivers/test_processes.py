"""Processes of this machine, found by their session."""

from __future__ import annotations

from switchyard.drivers import processes


def test_the_sessions_of_the_system_have_no_members() -> None:
    assert processes.find_members([0, 1, -1]) == []
