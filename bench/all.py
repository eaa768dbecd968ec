"""Run the measurements one after the other, and write bench/results.json and the generated parts of the page.

A target that is missed is said and changes nothing; a measurement that does not get to its end makes the exit code 1,
and leaves what was known of it before. `--only` runs some, `--quick` all at a small size into no page, `--page` none.
The simulated week, the data gate and the stack at rest take too long for the run of all: `--only week gate idle`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import report
from bench.measure import RESULTS, read_processor_time, stolen_share, tell
from switchyard.drivers.java import find_java
from switchyard.layout import PROJECT

DOCUMENT = PROJECT / "bench" / "results.json"
PAGE = PROJECT / "docs" / "performance.md"
MOST_MINUTES = 36
"""For all together. The last one does what it must and, for what is left of this, more of the same."""


@dataclass(frozen=True)
class Bench:
    name: str
    arguments: str = ""
    quick: str = ""
    within: str = ""
    """Another measurement that can make this one in passing, by an option of its name."""
    has_rounds: bool = False
    """Whether it can be told how many minutes there are for it."""
    is_apart: bool = False
    """Whether it takes too long for the run of all: only `--only` and `--quick` run it."""

    def command(self, is_quick: bool, passing: Sequence[str] = (), minutes_left: float = MOST_MINUTES) -> list[str]:
        arguments = self.quick if is_quick else self.arguments
        options = [*arguments.split(), *[f"--{name}" for name in passing]]
        if self.has_rounds:
            options.append(f"--minutes={max(0.0, minutes_left):.1f}")
        return [sys.executable, str(PROJECT / "bench" / f"{self.name}.py"), *options]


BENCHES = (
    Bench("bulk", quick="--events 100000"),
    Bench("latency", quick="--seconds 20"),
    Bench("growth", quick="--base 50000 --events 100000 500000 --crowd 40000"),
    Bench("backfill", quick="--events 100000", within="bulk"),
    Bench("maintenance", quick="--commits 5000 --minutes-between 60"),
    Bench("week", "--days 7", quick="--days 0.1", is_apart=True),
    Bench("gate", quick="--rows 50000 100000 --hot 300", is_apart=True),
    Bench("idle", quick="--seconds 20 --times 1", is_apart=True),
    Bench("swap", "--swaps 6 --spare 12 --crowd 2 --bare-runs 3", "--swaps 1 --spare 1 --bare-runs 1", has_rounds=True),
)


def choose_all(is_quick: bool) -> list[str]:
    return [bench.name for bench in BENCHES if is_quick or not bench.is_apart]


def plan(names: Collection[str]) -> dict[Bench, list[str]]:
    """Return the measurements to start, each with what it makes in passing."""
    chosen = [bench for bench in BENCHES if bench.name in names]
    return {
        bench: [other.name for other in chosen if other.within == bench.name]
        for bench in chosen
        if bench.within not in names
    }


def run(bench: Bench, passing: Sequence[str], is_quick: bool, minutes_left: float) -> dict[str, Any]:
    """Return what was kept, by measurement; nothing of one that did not get to its end."""
    names, began, busy = [bench.name, *passing], time.monotonic(), read_processor_time()
    for name in names:
        _kept(name).unlink(missing_ok=True)
    done = subprocess.run(bench.command(is_quick, passing, minutes_left), cwd=PROJECT)
    seconds = {bench.name: round(time.monotonic() - began, 1)}
    tell(f"== {bench.name} took {seconds[bench.name] / 60:.1f} minutes, exit code {done.returncode}")
    if done.returncode:
        return {}
    stolen = stolen_share(busy, read_processor_time())
    return {
        name: {**json.loads(_kept(name).read_text()), "seconds": seconds.get(name, 0), "stolen": stolen}
        for name in names
        if _kept(name).exists()
    }


def _kept(name: str) -> Path:
    return RESULTS / f"{name}.json"


def look_at_machine() -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memoryGib": round(pages / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "java": str(find_java().version),
        "spark": version("pyspark"),
    }


def read_document(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {"benches": {}}


def find_commit() -> str:
    """Return what was measured; empty where there is no git."""
    asked = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def renew(
    before: dict[str, Any], found: dict[str, Any], machine: dict[str, Any], run: dict[str, str]
) -> dict[str, Any]:
    """Return the document with what was found in the place of what was known, in the order of BENCHES.

    Each says in which run it was found: the others may be of an earlier one.
    """
    known = {**before.get("benches", {}), **{name: bench | run for name, bench in found.items()}}
    benches = {bench.name: known[bench.name] for bench in BENCHES if bench.name in known}
    minutes = sum(bench["seconds"] for bench in benches.values()) / 60
    return {"machine": machine, "minutes": round(minutes, 1), "benches": benches}


def write_page(document: dict[str, Any], page: Path) -> None:
    page.write_text(report.fill_page(page.read_text(), document))
    for name, bench in document["benches"].items():
        image = page.parent / report.IMAGES / report.image_name(name)
        image.write_text(report.draw_plot(report.figures_of(bench)))


def show(benches: dict[str, Any], failed: list[str]) -> None:
    tell("")
    figures = [figure for bench in benches.values() for figure in report.figures_of(bench)]
    for figure in figures:
        tell(figure.describe())
    met = sum(figure.is_met for figure in figures)
    tell(f"{met} of {len(figures)} targets are met")
    if failed:
        tell(f"did not get to their end: {', '.join(failed)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [bench.name for bench in BENCHES]
    parser.add_argument("--only", nargs="+", choices=names)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all runs; writes no page")
    parser.add_argument(
        "--page", action="store_true", help="write the page again from bench/results.json, measure nothing"
    )
    options = parser.parse_args()
    if options.page:
        write_page(read_document(DOCUMENT), PAGE)
        return 0
    found: dict[str, Any] = {}
    wanted = options.only or choose_all(options.quick)
    planned, began = plan(wanted), time.monotonic()
    this_run = {"measuredAt": datetime.now(UTC).isoformat(timespec="minutes"), "commit": find_commit()}
    for number, (bench, passing) in enumerate(planned.items(), 1):
        tell(f"== {' and '.join([bench.name, *passing])}, {number} of {len(planned)}")
        found |= run(bench, passing, options.quick, MOST_MINUTES - (time.monotonic() - began) / 60)
        if found and not options.quick:
            # After each, so that nothing is lost when the next one is interrupted.
            document = renew(read_document(DOCUMENT), found, look_at_machine(), this_run)
            DOCUMENT.write_text(json.dumps(document, indent=2) + "\n")
            write_page(document, PAGE)
    failed = [name for name in names if name in wanted and name not in found]
    show(found, failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
