"""What the end of a driver means for its task."""

from __future__ import annotations

import pytest

from switchyard.airflow.generation_tasks import is_killed


@pytest.mark.parametrize(("exit_code", "expected"), [(0, False), (1, False), (75, False), (137, True), (-9, True)])
def test_an_end_by_a_signal(exit_code: int, expected: bool) -> None:
    assert is_killed(exit_code) is expected
