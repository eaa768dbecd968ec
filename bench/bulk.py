"""How fast a start from `earliest` reads history: each join, against Spark appending both topics to Delta without one.

Both run as streaming queries over the same topics with the same number of records in a batch and stop at their end. The
baseline parses the same fields with `from_json` and appends with Spark's own Delta writer. It is measured before and
after the joins, and the mean counts, so that a machine whose speed changes hurts both. Every join must be the batch
join of all events. `--backfill` compares the backfill with the left join in passing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.backfill import compare_backfill
from bench.history import History, append, prepared_history, stream
from bench.measure import Figure, keep
from switchyard.layout import JOIN_TYPES

TARGETS = {"left": 0.5, "inner": 0.5, "natural": 0.35, "asof": 0.35}
AGAINST = "Spark appending both topics, no join"


@dataclass(frozen=True)
class Times:
    """Seconds of each join, and of the append before and after all of them."""

    joins: dict[str, float]
    append: tuple[float, float]

    def judge(self, events: int) -> list[Figure]:
        floor = events / statistics.mean(self.append)
        return [
            Figure(f"bulk, {name}", events / taken, floor, "events/s", TARGETS[name], "at least", AGAINST)
            for name, taken in self.joins.items()
        ]


def measure(history: History, joins: list[str]) -> Times:
    before = history.measure("append", append)
    seconds: dict[str, float] = {}
    for name in joins:
        seconds[name] = history.measure(name, partial(stream, join_type=name), name, is_warm=bool(seconds))
    return Times(seconds, (before, history.measure("append-again", append, is_warm=True)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="records of both topics together")
    parser.add_argument("--joins", nargs="*", choices=JOIN_TYPES, default=list(JOIN_TYPES))
    parser.add_argument("--backfill", action="store_true", help="measure the backfill too; needs the left join")
    options = parser.parse_args()
    if options.backfill and "left" not in options.joins:
        parser.error("--backfill is compared with the left join: leave left in --joins")
    with prepared_history(options.events) as history:
        times = measure(history, options.joins)
        if options.backfill:
            keep("backfill", *compare_backfill(history, times.joins["left"]))
    append_seconds = " and ".join(f"{seconds:.1f}" for seconds in times.append)
    facts = {"events": options.events, "seconds of the append, before and after the joins": append_seconds}
    keep("bulk", times.judge(options.events), facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
