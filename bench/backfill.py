"""How fast history is read: the backfill job against the stream, over the same topics in one run.

Both build the same left join with the same session: the stream in its usual micro-batches, the backfill as one batch.
Both must be the batch join of all events.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.history import History, backfill, prepared_history, stream
from bench.measure import Figure, keep


def compare_backfill(history: History, stream_seconds: float) -> tuple[list[Figure], dict[str, Any]]:
    """`stream_seconds` are those of the left join of the same history."""
    seconds = history.measure("backfill", backfill, "left", is_warm=True)
    rates = history.events / seconds, history.events / stream_seconds
    facts = {
        "events": history.events,
        "seconds of the stream": round(stream_seconds, 1),
        "seconds of the backfill": round(seconds, 1),
    }
    return [Figure("backfill", *rates, "events/s", 2.0, "at least", "the streaming path")], facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="records of both topics together")
    options = parser.parse_args()
    with prepared_history(options.events) as history:
        seconds = history.measure("left", partial(stream, join_type="left"), "left")
        keep("backfill", *compare_backfill(history, seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
