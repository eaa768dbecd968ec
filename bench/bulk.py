"""How fast a start from `earliest` reads history: each join, against Spark appending both topics to Delta without one.

Both run as streaming queries over the same topics with the same number of records in a batch and stop at their end. The
baseline parses the same fields with `from_json` and appends with Spark's own Delta writer. Every join must be clean by
the oracle. `--backfill` compares the backfill with the left join in passing.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.backfill import compare_backfill
from bench.history import History, append, prepared_history, stream
from bench.measure import Figure, keep
from switchyard.layout import JOIN_TYPES

TARGETS = {"left": 0.5, "inner": 0.5, "natural": 0.35, "asof": 0.35}
AGAINST = "Spark appending both topics, no join"


def compare(history: History, joins: list[str]) -> tuple[list[Figure], dict[str, float]]:
    """The figures, and the seconds of each join."""
    floor = history.measure("append", append, has_joined=False)
    seconds: dict[str, float] = {}
    for name in joins:
        seconds[name] = history.measure(name, partial(stream, join_type=name), is_warm=bool(seconds))
    figures = [
        Figure(
            f"bulk, {name}",
            history.events / taken,
            history.events / floor,
            "events/s",
            TARGETS[name],
            "at least",
            AGAINST,
        )
        for name, taken in seconds.items()
    ]
    return figures, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="records of both topics together")
    parser.add_argument("--joins", nargs="*", choices=JOIN_TYPES, default=list(JOIN_TYPES))
    parser.add_argument("--backfill", action="store_true", help="measure the backfill too; needs the left join")
    options = parser.parse_args()
    if options.backfill and "left" not in options.joins:
        parser.error("--backfill is compared with the left join: leave left in --joins")
    with prepared_history(options.events) as history:
        figures, seconds = compare(history, options.joins)
        if options.backfill:
            keep("backfill", *compare_backfill(history, seconds["left"]))
    keep("bulk", figures, {"events": options.events})
    return 0


if __name__ == "__main__":
    sys.exit(main())
