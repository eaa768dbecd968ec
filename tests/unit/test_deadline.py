"""Limits of time: when they pass, and how often is looked until then."""

from __future__ import annotations

import time

from switchyard.deadline import Deadline


def test_a_poll_is_made_at_once_and_once_more_after_the_deadline() -> None:
    assert len(list(Deadline(0).polls(60))) == 1
    began = time.monotonic()
    assert len(list(Deadline(0.05).polls(0.1))) == 2
    assert time.monotonic() - began >= 0.1


def test_what_is_due_again_and_again_is_due_once_for_each_time() -> None:
    due = Deadline(0)
    assert due.has_passed
    assert [due.restart_if_passed(60) for _ in range(2)] == [True, False]
    assert not due.has_passed
