"""Prometheus' own reader of the text format 0.0.4, and what a scraper asks for beyond it."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


@dataclass
class Parsed:
    help: str
    type: str
    samples: dict[Labels, float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        return self.samples[tuple(sorted(labels.items()))]


def parse(text: str) -> dict[str, Parsed]:
    """The metrics by the names of their samples: each has a help text and a type, is in one piece, each series once."""
    assert text == "" or text.endswith("\n"), "the last line must end in a line feed"
    metrics: dict[str, Parsed] = {}
    for family in text_string_to_metric_families(text):
        (name,) = {sample.name for sample in family.samples}
        assert name not in metrics, f"{name} is not in one piece"
        assert family.documentation, f"{name} has no help text"
        assert (family.type, name) in (("gauge", family.name), ("counter", f"{family.name}_total")), (
            f"{name} has no type"
        )
        metrics[name] = Parsed(family.documentation, family.type)
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in metrics[name].samples, f"{name} has two values for {labels}"
            metrics[name].samples[labels] = sample.value
    return metrics
