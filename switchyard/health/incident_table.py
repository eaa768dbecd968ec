"""Read and write `incidents`: what the health checks found broken, and when it was over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from switchyard.health.checks import Level
from switchyard.health.incidents import Incident, Stage
from switchyard.layout import Layout
from switchyard.tables import store
from switchyard.tables.commits import list_data_files
from switchyard.tables.folders import Folder
from switchyard.tables.pieces import scan_files
from switchyard.tables.schemas import SCHEMAS


def read_incidents(layout: Layout) -> list[Incident]:
    """Return, for each check, its last row and its last RAISED row: what is open, and since when."""
    if not store.has_table(layout, "incidents"):
        return []
    table = store.open_table(layout, "incidents")
    live = {file.path: file.rows for file in list_data_files(table).values()}
    last: dict[tuple[str, bool], Incident] = {}
    for piece in scan_files(Folder.at(table.table_uri), live, SCHEMAS["incidents"]):
        for incident in map(incident_of, piece.to_pylist()):
            for key in {(incident.check, False), (incident.check, incident.stage is Stage.RAISED)}:
                last[key] = max(last.get(key, incident), incident, key=lambda one: one.at)
    return list(dict.fromkeys(last.values()))


def keep_incidents(layout: Layout, incidents: Sequence[Incident]) -> None:
    if incidents:
        store.append_rows(layout, "incidents", [asdict(incident) for incident in incidents])


def incident_of(row: dict[str, Any]) -> Incident:
    return Incident(row["at"], row["check"], Stage(row["stage"]), Level(row["level"]), row["detail"])
