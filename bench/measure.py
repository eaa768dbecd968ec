"""Figures beside their baselines and targets, and where they are kept."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from switchyard.layout import PROJECT

RESULTS = PROJECT / "bench" / "results"


@dataclass(frozen=True)
class Figure:
    """A measured value beside the baseline of the same run. The ratio is what is promised."""

    name: str
    ours: float
    baseline: float
    unit: str
    target: float
    wanted: Literal["at most", "at least"] = "at most"
    against: str = ""
    """What the baseline is, in a few words."""

    @property
    def ratio(self) -> float:
        return self.ours / self.baseline

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.target if self.wanted == "at most" else self.ratio >= self.target

    def describe(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        return (
            f"{self.name:44} {self.ours:10.2f} against {self.baseline:10.2f} {self.unit:9} "
            f"ratio {self.ratio:5.2f}, {self.wanted} {self.target:g}: {verdict}"
        )


def keep(name: str, figures: list[Figure], facts: dict[str, Any]) -> None:
    """Print the figures and write them to bench/results."""
    for figure in figures:
        print(figure.describe(), flush=True)
    for label, value in facts.items():
        print(f"  {label:42} {value}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = {
        "figures": [asdict(figure) | {"ratio": round(figure.ratio, 3), "met": figure.is_met} for figure in figures],
        "facts": facts,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return float(ordered[math.ceil(share * len(ordered)) - 1])


def read_processor_time(stat: Path = Path("/proc/stat")) -> list[int]:
    """Return what the processors did since the machine started, by kind; nothing where the system does not say it."""
    return [int(part) for part in stat.read_text().split("\n")[0].split()[1:9]] if stat.exists() else []


def stolen_share(before: Sequence[int], after: Sequence[int]) -> float | None:
    """Return the share of processor time, the last of eight kinds, that other guests of the host took meanwhile."""
    spent = [late - early for early, late in zip(before, after, strict=True)]
    return spent[-1] / sum(spent) if sum(spent) else None


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
