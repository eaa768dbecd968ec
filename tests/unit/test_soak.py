"""A long soak that never got to the crowd and back must not pass for one that did."""

from __future__ import annotations

import pytest

from tests.faults.soak import LONG_MINUTES, MANY_ROWS, count_large, judge_visits


@pytest.mark.parametrize("visits", [[], [14_000], [MANY_ROWS - 1, 20_000]])
def test_a_long_run_without_a_large_visit_is_wrong_and_says_so(visits: list[int]) -> None:
    (said,) = judge_visits(visits, LONG_MINUTES)
    assert said.endswith(f"with fewer rows {len(visits)} did")
    assert judge_visits(visits, LONG_MINUTES - 1) == [], "a short run may have had no time for it"


@pytest.mark.parametrize("visits", [[MANY_ROWS], [14_000, 2_000_000, 0]])
def test_one_large_visit_is_enough(visits: list[int]) -> None:
    assert count_large(visits) == 1
    assert judge_visits(visits, 600) == []
