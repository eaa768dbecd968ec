"""The metrics: the text is Prometheus' format, and each figure says what the history and the reports say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from switchyard.health.checks import CHECKS, LastAudit, Level
from switchyard.health.incidents import Incident, Stage
from switchyard.health.metrics import EXPORTED, ActiveGeneration, MetricInputs, TableSize, measure, state_of
from switchyard.swap.history import Entry, Event, Ledger
from tests.exposition import Parsed, parse
from tests.specs import TARGET

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ACTIVE = ActiveGeneration(
    generation=3,
    epoch=4,
    target=TARGET,
    is_healthy=True,
    records_per_second=12.5,
    heartbeat_age_seconds=1.25,
    attempt=2,
    batch_id=41,
    lag=7,
    start={"users": {0: 100, 1: 0}, "accounts": {0: 5}},
    position={"users": {0: 110, 1: 3}, "accounts": {0: 5}},
    batch_seconds=(0.5, 2.0, 0.75),
    audit=LastAudit(NOW - timedelta(minutes=5), 3, 0),
    tables={"joined": TableSize(4, 900), "rejects": TableSize(1, 2), "users": TableSize(2, None)},
)


def write(*events: tuple[str, int | None, Event]) -> Ledger:
    """A history: swap id, generation and event, a second apart."""
    return Ledger.of(
        Entry(swap_id, event, generation, TARGET, "latest", at=NOW - timedelta(hours=1) + timedelta(seconds=number))
        for number, (swap_id, generation, event) in enumerate(events)
    )


LIFE = (Event.REQUESTED, Event.STARTING, Event.READY, Event.APPLIED)
HISTORY = write(
    *(("first", 1, event) for event in (*LIFE, Event.LINGERING, Event.RETIRED)),
    *(("second", 2, event) for event in (Event.REQUESTED, Event.STARTING, Event.FAILED, Event.RETIRED)),
    *(("third", 3, event) for event in LIFE),
    ("nonsense", None, Event.REJECTED),
    ("dry", None, Event.PLANNED),
    ("backfill-x", 4, Event.REQUESTED),
    ("backfill-x", 4, Event.PLANNED),
    ("fifth", 5, Event.REQUESTED),
)
INPUTS = MetricInputs(NOW, "0.1.0", HISTORY, {}, ACTIVE)


@dataclass(frozen=True)
class Measured(Collector):
    inputs: MetricInputs

    def collect(self) -> Iterator[Metric]:
        return measure(self.inputs)


def read(inputs: MetricInputs = INPUTS) -> dict[str, Parsed]:
    return parse(generate_latest(Measured(inputs)).decode())


def test_every_metric_is_shown_with_its_kind_and_meaning() -> None:
    shown = read()
    assert {metric.name: (metric.kind, metric.help) for metric in EXPORTED} == {
        name: (family.type, family.help) for name, family in shown.items()
    }
    assert all(family.samples for family in shown.values())


def test_names_tell_the_unit_and_counters_end_in_total() -> None:
    for metric in EXPORTED:
        assert re.fullmatch(r"switchyard_[a-z][a-z_]*", metric.name)
        assert not re.search(r"_(ms|millis|minutes|hours|kb|mb)(_|$)", metric.name), "use seconds and bytes"
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("build_info", {"version": "0.1.0"}, 1),
        ("healthy", {}, 1),
        ("active_generation", {}, 3),
        ("epoch", {}, 4),
        ("lag_records", {}, 7),
        ("position_offset", {"topic": "users", "partition": "0"}, 110),
        ("records_read_total", {"generation": "3", "topic": "users"}, 13),
        ("records_read_total", {"generation": "3", "topic": "accounts"}, 0),
        ("records_per_second", {}, 12.5),
        ("batches_total", {"generation": "3"}, 42),
        ("batch_seconds", {}, 0.75),
        ("batch_max_seconds", {}, 2.0),
        ("heartbeat_age_seconds", {}, 1.25),
        ("driver_attempts_total", {"generation": "3"}, 2),
        ("table_rows", {"table": "rejects"}, 2),
        ("table_files", {"table": "users"}, 2),
        ("audit_differences", {}, 0),
        ("audit_age_seconds", {}, 300),
        ("swaps_total", {"outcome": "applied"}, 2),
        ("swaps_total", {"outcome": "failed"}, 1),
        ("swaps_total", {"outcome": "rejected"}, 1),
        ("swaps_total", {"outcome": "planned"}, 2),
        ("swaps_total", {"outcome": "superseded"}, 0),
        ("swaps_open", {}, 1),
        ("last_swap_seconds", {}, 3),
    ],
)
def test_a_figure_is_what_was_seen(name: str, labels: dict[str, str], value: float) -> None:
    assert read()[f"switchyard_{name}"].value(**labels) == value


def test_what_is_not_known_has_no_sample() -> None:
    unknown = replace(ACTIVE, lag=None, heartbeat_age_seconds=None, batch_seconds=(), audit=None, position={})
    shown = read(replace(INPUTS, active=unknown))
    for name in ("lag_records", "heartbeat_age_seconds", "batch_seconds", "batch_max_seconds", "audit_age_seconds"):
        assert f"switchyard_{name}" not in shown
    assert "switchyard_records_read_total" not in shown
    assert (("table", "users"),) not in shown["switchyard_table_rows"].samples


def test_before_anything_is_active_it_is_not_healthy() -> None:
    shown = read(MetricInputs(NOW, "0.1.0"))
    assert shown["switchyard_healthy"].value() == 0
    assert sum(shown["switchyard_swaps_total"].samples.values()) == 0
    assert "switchyard_active_generation" not in shown


def test_generations_are_counted_by_where_they_stand() -> None:
    states = read()["switchyard_generations"].samples
    assert {labels[0][1]: count for labels, count in states.items() if count} == {
        "retired": 2,
        "failed": 1,
        "active": 1,
        "building": 1,
    }
    assert sum(states.values()) == len(HISTORY.generations)


def test_the_status_row_says_which_generation_is_active() -> None:
    """Between a flip and the line in the history the one before is as good as lingering."""
    flipped = write(*(("first", 1, event) for event in LIFE), ("second", 2, Event.REQUESTED))
    assert (state_of(flipped, 1, 2), state_of(flipped, 2, 2)) == ("lingering", "active")
    removed = write(*(("first", 1, event) for event in (*LIFE, Event.LINGERING, Event.RETIRED, Event.RETIRED)))
    assert state_of(removed, 1, None) == "removed"


def test_open_incidents_are_shown_by_check_and_level() -> None:
    lag = Incident(NOW, "lag", Stage.WORSE, Level.PERSON, "7 records behind")
    samples = read(replace(INPUTS, incidents={"lag": lag}))["switchyard_incidents_open"]
    assert samples.value(check="lag", level="person_needed") == 1
    assert sum(samples.samples.values()) == 1
    assert len(samples.samples) == 2 * len(CHECKS)


@given(st.text(max_size=20), st.floats(allow_nan=False) | st.integers(-(2**70), 2**70))
def test_any_label_and_number_comes_back_as_it_was(text: str, value: float) -> None:
    strange = replace(ACTIVE, position={text: {0: value}}, records_per_second=value)  # type: ignore[dict-item]
    shown = read(replace(INPUTS, active=strange))
    assert shown["switchyard_records_per_second"].value() == float(value)
    assert shown["switchyard_position_offset"].value(topic=text, partition="0") == float(value)


def test_a_number_that_is_none_is_written_as_prometheus_reads_it() -> None:
    for value, written in ((math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")):
        text = generate_latest(Measured(replace(INPUTS, active=replace(ACTIVE, records_per_second=value)))).decode()
        assert f"\nswitchyard_records_per_second {written}\n" in text


def test_a_series_that_is_there_twice_is_noticed() -> None:
    with pytest.raises(AssertionError, match="two values"):
        parse("# HELP m .\n# TYPE m gauge\nm 1\nm 2\n")
