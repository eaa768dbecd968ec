"""How long forgetting one person holds a generation up, by the rows of its tables.

Fills the tables of a generation without Spark (each user event with one account), forgets a user, and prints the
seconds for each size and the processor time for a million rows. Writes bench/results/forget.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa

from switchyard.layout import PROJECT, Layout
from switchyard.spec import GenerationSpec
from switchyard.tables.forgotten import add_mark
from switchyard.tables.joined_changes import BATCH_SCHEMA
from switchyard.tables.sink import BatchSink
from switchyard.tables.writer import claim_attempt

START = datetime(2026, 1, 1, tzinfo=UTC)
BATCH_ROWS = 25_000
SPEC = GenerationSpec(
    generation=1,
    usersTopic="users",
    accountsTopic="accounts",
    joinType="inner",
    start="earliest",
    startOffsets={},
    readyOffsets={},
    requestedAt=START,
)


def draw_batch(first: int) -> pa.Table:
    """So many user events, an account event of the same userId for each, and the pair of both."""
    numbers = np.arange(first, first + BATCH_ROWS)
    ids = [f"user-{number % (BATCH_ROWS * 4)}" for number in numbers]
    stamps = pa.array([START + timedelta(milliseconds=int(number)) for number in numbers], pa.timestamp("us", "UTC"))
    place = {"Ts": stamps, "Partition": pa.repeat(pa.scalar(0, pa.int32()), BATCH_ROWS), "Offset": pa.array(numbers)}
    users = {
        "name": [f"Name {number}" for number in numbers],
        "email": [f"{one}@example.org" for one in ids],
        "age": pa.array(numbers % 90),
        **{f"user{name}": column for name, column in place.items()},
    }
    accounts = {
        "accountType": ["gold"] * BATCH_ROWS,
        "balance": pa.array(numbers / 4),
        **{f"account{name}": column for name, column in place.items()},
    }
    parts = {"user": users, "account": accounts, "pair": users | accounts}
    return pa.concat_tables([_rows(kind, ids, columns) for kind, columns in parts.items()])


def _rows(kind: str, ids: list[str], columns: dict[str, object]) -> pa.Table:
    given = {"kind": [kind] * len(ids), "userId": ids, **columns}
    return pa.table({field.name: given.get(field.name, pa.nulls(len(ids), field.type)) for field in BATCH_SCHEMA}).cast(
        BATCH_SCHEMA
    )


def measure(batches: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        sink = BatchSink(layout, SPEC, claim_attempt(layout, 1))
        for number in range(batches):
            sink.commit_arrow(number, draw_batch(number * BATCH_ROWS))
        ends = {topic: {0: batches * BATCH_ROWS} for topic in ("users", "accounts")}
        add_mark(layout, "user-7", ends, {}, "bench")
        began, cpu = time.monotonic(), time.process_time()
        lost = sink.carry_out_marks()
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        assert lost is not None
        assert lost["joined"] > 0
        rows = 3 * batches * BATCH_ROWS
        return {"rows": rows, "lost": sum(lost.values()), "seconds": seconds, "cpu_per_million": cpu / rows * 1e6}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 40], help="batches of 25,000 users and accounts")
    results = [measure(count) for count in parser.parse_args().batches]
    for result in results:
        print(
            "{rows:,} rows, {lost} lost: {seconds:.2f} s; {cpu_per_million:.2f} s of processor time a million".format(
                **result
            )
        )
    target = PROJECT / "bench" / "results" / "forget.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
