"""incidents: what the health checks found broken, and when it was over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from switchyard.health import Level
from switchyard.incidents import Incident, Stage
from switchyard.layout import Layout
from switchyard.tables import store


def read_incidents(layout: Layout) -> list[Incident]:
    return [incident_of(row) for row in store.read_rows(layout, "incidents")]


def keep_incidents(layout: Layout, incidents: Sequence[Incident]) -> None:
    if incidents:
        store.append_rows(layout, "incidents", [asdict(incident) for incident in incidents])


def incident_of(row: dict[str, Any]) -> Incident:
    return Incident(row["at"], row["check"], Stage(row["stage"]), Level(row["level"]), row["detail"])
