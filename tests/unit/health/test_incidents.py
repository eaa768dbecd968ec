"""One alert for each turn for the worse, and one when it is over."""

from __future__ import annotations

from datetime import timedelta

from switchyard.health.checks import (
    CHECKS,
)
from switchyard.health.incidents import Incident, Stage, find_news, open_incidents
from tests.unit.health.health_inputs import LIMITS, NOW, heartbeat, inputs


def test_one_alert_when_it_breaks_one_when_it_gets_worse_one_when_it_is_over() -> None:
    history: list[Incident] = []
    told = []
    for minute, seconds in enumerate((5, 60, 90, 400, 500, 3, 4, 60)):
        verdicts = [check(inputs(heartbeat(seconds)), LIMITS) for name, check in CHECKS.items() if name == "heartbeat"]
        news = find_news(history, verdicts, NOW + timedelta(minutes=minute))
        history += news
        told.append([incident.stage for incident in news])
    assert told == [[], [Stage.RAISED], [], [Stage.WORSE], [], [Stage.OVER], [], [Stage.RAISED]]
    assert "over after 4 min" in history[2].detail
    assert [incident.log_level for incident in history] == ["WARNING", "ERROR", "INFO", "WARNING"]
    assert set(open_incidents(history)) == {"heartbeat"}
    assert open_incidents(history[:3]) == {}
