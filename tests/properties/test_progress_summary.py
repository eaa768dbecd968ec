"""Summaries of progress: an audit must not see a difference, whatever was reported twice, broken or out of order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from switchyard.offsets import to_json
from switchyard.tables.schemas import PROGRESS
from switchyard.upkeep.progress_summary import know_progress, summarize_progress

NOW = datetime(2026, 6, 1, tzinfo=UTC)
SCHEMA = pa.schema([field for field in PROGRESS if field.name != "generation"])
Row = dict[str, object]


@st.composite
def reports(draw: st.DrawFn) -> list[Row]:
    """Batches in order over some attempts, with heartbeats, repetitions and now and then a break in the chain."""
    rows: list[Row] = []
    end = attempt = 0
    for batch in range(draw(st.integers(0, 12))):
        start = end + draw(st.sampled_from([0, 0, 0, 0, 5]))
        end = start + draw(st.integers(0, 9))
        for _ in range(draw(st.integers(1, 2))):
            attempt += draw(st.integers(0, 1))
            rows.append(report(attempt, batch, len(rows), to_json({"t": {0: start}}), to_json({"t": {0: end}})))
        if draw(st.booleans()):
            rows.append(report(attempt, batch, len(rows), None, to_json({"t": {0: end}})))
    return rows


def report(attempt: int, batch: int, second: int, start: str | None, end: str) -> Row:
    counted = batch + 1 if start else 0
    return {
        "attempt": attempt,
        "batchId": batch,
        "at": NOW + timedelta(seconds=second),
        "inputRows": counted,
        "rowsPerSecond": float(counted),
        "batchMs": counted,
        "rejectedRows": counted,
        "tombstones": counted,
        "startOffsets": start,
        "endOffsets": end,
        **dict.fromkeys(("usersVersion", "accountsVersion", "joinedVersion", "rejectsVersion"), second),
    }


def account(rows: list[Row]) -> tuple[list[object], list[tuple[object, object]], object]:
    """What the audit asks: the sums, the breaks with what is on both sides, and the end."""
    by_batch = {row["batchId"]: row for row in sorted(rows, key=lambda row: str(row["at"])) if row["startOffsets"]}
    chain = [by_batch[batch] for batch in sorted(by_batch)]  # type: ignore[type-var]
    sums: list[object] = [sum(row[name] for row in chain) for name in ("inputRows", "rejectedRows", "tombstones")]  # type: ignore[misc]
    links = [(before["endOffsets"], row["startOffsets"]) for before, row in pairwise(chain)]
    return sums, [link for link in links if link[0] != link[1]], chain[-1]["endOffsets"] if chain else None


@settings(deadline=None)
@given(reports(), st.integers(0, 40))
def test_a_last_batch_that_is_replayed_later_counts_once(rows: list[Row], first: int) -> None:
    batches = [row for row in rows if row["startOffsets"]]
    if not batches:
        return
    again = {**batches[-1], "at": NOW + timedelta(hours=1)}
    summary = summarize_progress(pa.Table.from_pylist(rows, schema=SCHEMA), NOW + timedelta(seconds=first)).to_pylist()
    assert account([*summary, again]) == account([*rows, again])


@settings(deadline=None)
@given(reports(), st.integers(0, 40), st.integers(0, 40), st.randoms())
def test_folding_changes_nothing_that_is_asked(rows: list[Row], first: int, more: int, shuffle: object) -> None:
    shuffled = list(rows)
    shuffle.shuffle(shuffled)  # type: ignore[attr-defined]
    once = summarize_progress(pa.Table.from_pylist(shuffled, schema=SCHEMA), NOW + timedelta(seconds=first))
    twice = summarize_progress(once, NOW + timedelta(seconds=first + more))
    for summary in (once.to_pylist(), twice.to_pylist()):
        assert account(summary) == account(rows)
        newest = max(rows, key=lambda row: (row["attempt"], row["at"]), default=None)
        found = max(summary, key=lambda row: (row["attempt"], row["at"]), default=None)
        if newest and found:
            same = ("attempt", "batchId", "at", "endOffsets", "usersVersion")
            assert [newest[name] for name in same] == [found[name] for name in same]
        else:
            assert summary == []
    recent = [row for row in rows if row["at"] >= NOW + timedelta(seconds=first)]  # type: ignore[operator]
    assert all({**dict.fromkeys(SCHEMA.names), **row} in once.to_pylist() for row in recent)
    old = [row for row in once.to_pylist() if row["at"] < NOW + timedelta(seconds=first)]
    assert len(old) <= 3 + len(account(rows)[1])


# The second batch has no records, so the first and the third would fit together.
EMPTY_BETWEEN = [
    report(0, batch, batch, to_json({"t": {0: start}}), to_json({"t": {0: end}}))
    for batch, (start, end) in enumerate([(0, 1), (1, 1), (1, 2), (2, 3)])
]


@settings(deadline=None)
@example(EMPTY_BETWEEN, 40, 2, True)
@given(reports(), st.integers(0, 40), st.integers(1, 6), st.booleans())
def test_folding_part_by_part_changes_nothing_that_is_asked(
    rows: list[Row], first: int, size: int, is_mixed: bool
) -> None:
    before = NOW + timedelta(seconds=first)
    mixed = [*rows[::2], *rows[1::2]] if is_mixed else rows
    parts = [pa.Table.from_pylist(mixed[at : at + size], schema=SCHEMA) for at in range(0, len(mixed), size)]
    known = know_progress(parts)
    summary = [row for part in parts for row in summarize_progress(part, before, known).to_pylist()]
    assert account(summary) == account(rows)
    newest = max(rows, key=lambda row: (row["attempt"], row["at"]), default=None)
    found = max(summary, key=lambda row: (row["attempt"], row["at"]), default=None)
    assert newest is None or [newest[name] for name in ("batchId", "at")] == [found[name] for name in ("batchId", "at")]
    assert all({**dict.fromkeys(SCHEMA.names), **row} in summary for row in rows if row["at"] >= before)  # type: ignore[operator]
