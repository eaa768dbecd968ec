"""The dashboard, the alerts and the page of the docs against the metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchyard.airflow.page import URL_PREFIX
from switchyard.health.metrics import EXPORTED
from switchyard.layout import PROJECT
from tests.spark_metrics import SPARK_METRICS
from tests.unit.health.test_metrics import read

FOLDER = PROJECT / "docker" / "observability"
PROMETHEUS: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "rules.yaml").read_text())
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "dashboards" / "switchyard.json").read_text())
DOCS = (PROJECT / "docs" / "observability.md").read_text()

FUNCTIONS = {"absent", "changes", "delta", "deriv", "increase", "rate", "sum"}
WORDS = {"and", "or", "unless", "by"}
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")
SELECTOR = re.compile(r"(?<![\w.])([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\(|\{[^}]*\})?")
MATCHER = re.compile(r'([a-z_]+)(=|!=)"([^"]*)"')


@dataclass(frozen=True)
class Selector:
    """A metric as an expression asks for it."""

    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()


def parse_expression(text: str) -> tuple[list[Selector], set[str]]:
    """What an expression selects, and the labels it groups by. Refuses a function that is not in the list."""
    groups = {label.strip() for found in GROUPING.findall(text) for label in found.split(",")}
    rest = re.sub(r"\[[^\]]*\]", "", GROUPING.sub("", text))
    selectors = []
    for name, after in SELECTOR.findall(rest):
        if after == "(" and name not in WORDS:
            assert name in FUNCTIONS, f"{name} is no function that the tests know"
        elif name not in WORDS:
            matchers = tuple(MATCHER.findall(after))
            assert len(matchers) == after.count("="), f"what the tests cannot read: {after}"
            selectors.append(Selector(name, matchers))
    return selectors, groups


def test_an_expression_is_read_as_prometheus_reads_it() -> None:
    text = 'sum by (topic) (rate(a_total{x="1",y!="2"}[5m])) > 0.1 * 3e3 or absent(b) unless c'
    wanted = [Selector("a_total", (("x", "=", "1"), ("y", "!=", "2"))), Selector("b"), Selector("c")]
    assert parse_expression(text) == (wanted, {"topic"})
    with pytest.raises(AssertionError, match="no function"):
        parse_expression("histogram_quantile(0.9, a)")


def expressions() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and its text."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


ALL = [pytest.param(text, id=place) for place, text in expressions()]


@cache
def airflow_names() -> set[str]:
    """Airflow's own list, under the names that the collector makes of them; timers, which are histograms, left out."""
    package = find_spec("airflow")
    assert package is not None
    assert package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0])
    listed = yaml.safe_load((folder / "_shared/observability/metrics/metrics_template.yaml").read_text())["metrics"]
    plain = [(metric["type"], f"airflow_{metric['name'].replace('.', '_')}") for metric in listed]
    return {name + "_total" * (kind == "counter") for kind, name in plain if kind in ("counter", "gauge")}


def relabel(name: str) -> tuple[str | None, dict[str, str]]:
    """What Prometheus makes of one of Spark's names, by the rules in our file; None: it is dropped."""
    labels = {"__name__": name}
    (job,) = [job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "spark"]
    for rule in job["metric_relabel_configs"]:
        assert rule["source_labels"] == ["__name__"]
        found = re.fullmatch(rule["regex"], labels["__name__"])
        if rule.get("action") == "keep":
            if not found:
                return None, {}
        elif found:
            labels[rule["target_label"]] = found.expand(rule["replacement"].replace("$", "\\"))
    return labels.pop("__name__"), labels


SPARK = {name: set(labels) for name, labels in map(relabel, SPARK_METRICS) if name}


@pytest.mark.parametrize("text", ALL)
def test_only_metrics_that_exist_are_asked_for(text: str) -> None:
    shown, known_elsewhere = read(), airflow_names() | set(SPARK) | {"up"}
    selectors, groups = parse_expression(text)
    assert selectors
    for selector in selectors:
        if selector.name not in shown:
            assert selector.name in known_elsewhere, f"there is no metric {selector.name}"
            continue
        samples = [dict(labels) for labels in shown[selector.name].samples]
        assert groups <= set(samples[0])
        for label, _, value in selector.matchers:
            assert value in {labels[label] for labels in samples}, f"{label} is never {value}"


def test_the_names_of_labels_in_a_legend_and_a_sentence_exist() -> None:
    targets = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    worded = [(target["expr"], target["legendFormat"]) for target in targets]
    worded += [(rule["expr"], rule["annotations"]["summary"]) for group in RULES["groups"] for rule in group["rules"]]
    shown = read()
    for text, words in worded:
        wanted = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", words))
        names = [selector.name for selector in parse_expression(text)[0]]
        there = {label for name in names if name in shown for labels in shown[name].samples for label, _ in labels}
        assert wanted <= there | set().union(*(SPARK.get(name, set()) for name in names)), words


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    used = {selector.name for _, text in expressions() for selector in parse_expression(text)[0]}
    shown_elsewhere = {"switchyard_build_info", "switchyard_active_info", "switchyard_position_offset"}
    assert {metric.name for metric in EXPORTED} - used == shown_elsewhere
    assert set(SPARK) <= used


def test_spark_names_that_nobody_looks_at_are_dropped() -> None:
    assert relabel("metrics_switchyard_driver_BlockManager_memory_memUsed_MB_Number") == (None, {})
    assert relabel(SPARK_METRICS[0]) == ("spark_streaming_inputRate_total", {"generation": "1"})


def test_prometheus_asks_where_the_page_is_and_with_the_token_of_the_profile() -> None:
    (job,) = [job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "switchyard"]
    services = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text())["services"]
    assert job["metrics_path"] == f"{URL_PREFIX}/metrics"
    assert job["authorization"]["credentials_file"] in services["metrics-token"]["command"]
    hosts = {
        target.split(":")[0] for job in PROMETHEUS["scrape_configs"] for target in job["static_configs"][0]["targets"]
    }
    assert hosts <= set(services)


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def documented(section: str) -> dict[str, list[str]]:
    """The rows of the table of a section, by what stands in the first column."""
    text = DOCS[DOCS.index(f"\n## {section}\n") :].removeprefix(f"\n## {section}\n").split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    return {re.findall(r"`(\w+)", row[0])[0]: row for row in rows}


def test_the_docs_have_a_row_for_every_metric_with_its_kind_and_labels() -> None:
    rows = documented("Switchyard's own figures")
    wanted = {metric.name: metric.kind for metric in EXPORTED}
    assert rows.keys() == wanted.keys()
    for name, family in read().items():
        labels = {label for labels in family.samples for label, _ in labels}
        assert set(re.findall(r"`(\w+)`", rows[name][2])) == labels, name
        assert (rows[name][1], bool(rows[name][3])) == (wanted[name], True)


def test_the_docs_have_a_row_for_every_alert() -> None:
    assert documented("Alerts").keys() == {rule["alert"] for group in RULES["groups"] for rule in group["rules"]}


@pytest.mark.parametrize(
    "rule", [rule for group in RULES["groups"] for rule in group["rules"]], ids=lambda r: r["alert"]
)
def test_an_alert_says_how_bad_it_is_and_what_is_wrong(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"].endswith((".", "?"))
