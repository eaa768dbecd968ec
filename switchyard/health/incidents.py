"""Turn verdicts into incidents: one alert when something breaks, one when it is over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from switchyard.health.checks import Level, Verdict
from switchyard.wording import describe_time


class Stage(StrEnum):
    RAISED = "RAISED"
    WORSE = "WORSE"
    """The repair did not help: a person is needed."""
    OVER = "OVER"


@dataclass(frozen=True)
class Incident:
    """One row of the table."""

    at: datetime
    check: str
    stage: Stage
    level: Level
    detail: str

    @property
    def log_level(self) -> Literal["INFO", "WARNING", "ERROR"]:
        if self.stage is Stage.OVER:
            return "INFO"
        return "ERROR" if self.level is Level.PERSON else "WARNING"

    @property
    def sentence(self) -> str:
        return f"{self.check}: {self.detail}"


def open_incidents(history: Iterable[Incident]) -> dict[str, Incident]:
    """Return the last row of each check whose incident is not over."""
    last = {incident.check: incident for incident in sorted(history, key=lambda incident: incident.at)}
    return {check: incident for check, incident in last.items() if incident.stage is not Stage.OVER}


def find_news(history: Sequence[Incident], verdicts: Iterable[Verdict], now: datetime) -> list[Incident]:
    """Return what has changed since the last check and is to be reported."""
    known = open_incidents(history)
    news = [_compare(known, history, verdict, now) for verdict in verdicts]
    return [incident for incident in news if incident is not None]


def _compare(
    known: Mapping[str, Incident], history: Sequence[Incident], verdict: Verdict, now: datetime
) -> Incident | None:
    before = known.get(verdict.check)
    if verdict.is_incident and before is None:
        return Incident(now, verdict.check, Stage.RAISED, verdict.level, verdict.text)
    if before is None:
        return None
    if verdict.is_incident:
        is_worse = verdict.level is Level.PERSON and before.level is not Level.PERSON
        return Incident(now, verdict.check, Stage.WORSE, verdict.level, verdict.text) if is_worse else None
    began = max(
        incident.at for incident in history if incident.check == verdict.check and incident.stage is Stage.RAISED
    )
    text = f"over after {describe_time(now - began)}: {verdict.text}"
    return Incident(now, verdict.check, Stage.OVER, verdict.level, text)
