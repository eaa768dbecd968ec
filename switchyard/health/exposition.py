"""Prometheus' text format, version 0.0.4: figures with names, kinds and labels become lines. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TOTAL = "_total"


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    """Never goes down while its labels stay the same."""


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Kind
    help: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a name of a metric")
        if self.name.endswith(_TOTAL) != (self.kind is Kind.COUNTER):
            raise ValueError(f"{self.name}: counters end in {_TOTAL}, and nothing else does")


@dataclass(frozen=True)
class Sample:
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """A metric and what it is now; without samples it is not shown, as nobody knows its value."""

    metric: Metric
    samples: tuple[Sample, ...]


def render(families: Iterable[Family]) -> str:
    return "".join(f"{line}\n" for family in families if family.samples for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    metric = family.metric
    yield f"# HELP {metric.name} {_escape(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    series = [f"{metric.name}{_labels(sample.labels)}" for sample in family.samples]
    if len(set(series)) != len(series):
        raise ValueError(f"{metric.name} has two values for the same labels")
    for name, sample in zip(series, family.samples, strict=True):
        yield f"{name} {_number(sample.value)}"


def _labels(labels: Mapping[str, str]) -> str:
    unknown = [name for name in labels if not _NAME.fullmatch(name)]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a name of a label")
    pairs = [f'{name}="{_escape(value, quotes=True)}"' for name, value in sorted(labels.items())]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(text: str, quotes: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
