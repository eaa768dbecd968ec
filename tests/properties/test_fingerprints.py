"""Records that the topics and the tables do not have alike are counted, whatever is doubled, changed or lost."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from switchyard.records import PLACE
from switchyard.stream.fingerprints import count_differing

records = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from([-(2**63), 0, 2**63 - 1])))


def build_table(rows: list[tuple[int, int, int]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 3
    kinds = (pa.int32(), pa.int64(), pa.int64())
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], names=[*PLACE, "row"]
    )


@given(records, records)
def test_records_that_differ_are_counted_like_those_of_two_multisets(
    expected: list[tuple[int, int, int]], actual: list[tuple[int, int, int]]
) -> None:
    missing, extra = Counter(expected) - Counter(actual), Counter(actual) - Counter(expected)
    found = count_differing(build_table(expected), build_table(actual))
    assert found == max(missing.total(), extra.total())


@given(records)
def test_the_same_records_in_any_order_do_not_differ(rows: list[tuple[int, int, int]]) -> None:
    assert count_differing(build_table(rows), build_table(rows[::-1])) == 0
