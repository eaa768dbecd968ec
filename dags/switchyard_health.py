"""
# Is it healthy, and what can be repaired

**What it does.** Each check is a task with a plain verdict in its log and in its XCom:

| task | checks |
|---|---|
| `broker` | whether Kafka answers |
| `heartbeat` | when the active generation was last heard of |
| `progress` | whether its rows move while records wait |
| `lag` | how far it is behind, and whether that grows |
| `rejects` | how many records of the last minutes were rejected |
| `disk` | free space |
| `swap` | a swap past its deadline |
| `drivers` | drivers of generations that are over, a spare driver that hangs |
| `audit` | what the last audit of the active generation found |

`heal` then settles what is due, and ends drivers that hang or are not wanted any more. It starts a run for an active
generation that has neither a driver nor a task that would start one: a new attempt on the same checkpoint, the old one
is fenced out. `report` writes to the table `incidents` and tells people, once when something breaks and once when it is
over. The connection `switchyard_alerts` says how: Slack, a webhook or e-mail; without it the log is all.

**When it runs.** Every minute. A driver that hangs is found sooner, by the task that it runs in.

**Is it safe to run again?** Yes. It changes nothing that is healthy.

**When it fails.** A red run means that a person is needed; the red task says for what, and `report` repeats it in one
line. A run of another colour needs no person.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import CronTriggerTimetable, dag

from switchyard.airflow.defaults import dag_arguments
from switchyard.airflow.health_operators import CheckOperator, HealOperator, ReportOperator
from switchyard.health.checks import CHECKS


@dag(
    dag_id=Path(__file__).stem,
    schedule=CronTriggerTimetable("* * * * *", timezone="UTC"),
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=5),
    **dag_arguments(__doc__, "health"),
)
def switchyard_health() -> None:
    checks = [CheckOperator(check=check) for check in CHECKS]
    heal = HealOperator(
        task_id="heal", task_display_name="repair what can be repaired", trigger_rule="all_done", retries=0
    )
    report = ReportOperator(
        task_id="report",
        task_display_name="tell people",
        checks=[*CHECKS, "heal"],
        trigger_rule="all_done",
        retries=1,
        retry_delay=timedelta(seconds=5),
    )
    checks >> heal >> report


health_dag = switchyard_health()
