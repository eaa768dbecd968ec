"""What the log of a batch job says about how far it is."""

from __future__ import annotations

from switchyard.stream.job_progress import describe_part, describe_whole


def test_a_part_is_told_by_whole_tasks() -> None:
    told = describe_part("reading users", (3, 12), 1_000_000, 10.0)
    assert told == "reading users: about 250000 of 1000000 records, 25 %, 25000 a second"
    assert "about 0 of 10 records, 0 %" in describe_part("joining", (0, 0), 10, 0.0)


def test_the_whole_is_told_with_its_rate() -> None:
    assert describe_whole("joining", 5000, 2.5) == "joining: 5000 records in 2.5 s, 2000 a second"
