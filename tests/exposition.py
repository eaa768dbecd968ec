"""A strict reader of Prometheus' text format 0.0.4, written from its description and not from our writer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
VALUE = r'"(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL}={VALUE})(?:,{LABEL}={VALUE})*)\}})? (\S+)")
PAIR = re.compile(rf"({LABEL})=({VALUE})(?:,|$)")
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
Labels = tuple[tuple[str, str], ...]


@dataclass
class Parsed:
    help: str
    type: str = ""
    samples: dict[Labels, float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        return self.samples[tuple(sorted(labels.items()))]


def parse(text: str) -> dict[str, Parsed]:
    """HELP, TYPE and the samples of a metric, in this order, all of one metric together, each series once."""
    assert text == "" or text.endswith("\n"), "the last line must end in a line feed"
    families: dict[str, Parsed] = {}
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name, _, words = line.removeprefix("# HELP ").partition(" ")
            assert re.fullmatch(NAME, name), line
            assert name not in families, f"{name} is not in one piece"
            assert re.fullmatch(r"(?:[^\\]|\\\\|\\n)*", words), line
            families[name] = Parsed(_unescape(words))
            continue
        last = next(reversed(families))
        if line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert (name, families[name].type, families[name].samples) == (last, "", {}), line
            assert kind in ("counter", "gauge"), line
            families[name].type = kind
            continue
        found = SAMPLE.fullmatch(line)
        assert found, f"not a sample: {line!r}"
        assert found[1] == last, f"{line!r} stands below {last}"
        assert families[last].type, f"{last} has no type"
        labels = _labels(found[2] or "")
        assert labels not in families[last].samples, f"twice: {line!r}"
        families[last].samples[labels] = float(found[3])
    return families


def _labels(text: str) -> Labels:
    pairs = [(name, _unescape(value[1:-1])) for name, value in PAIR.findall(text)]
    assert len({name for name, _ in pairs}) == len(pairs), f"a label twice: {text}"
    return tuple(sorted(pairs))


def _unescape(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda found: ESCAPES[found[0]], text)
