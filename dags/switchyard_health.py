"""
# Is it healthy, and what can be repaired

**What it does.** Its one task makes all checks, and writes each verdict into its log, as a table:

| check | judges |
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

It then settles what is due, and ends drivers that hang or are not wanted any more. It starts a run for an active
generation that has neither a driver nor a task that would start one: a new attempt on the same checkpoint, the old one
is fenced out. What breaks, and what is over, goes to the table `incidents` and is told to people, once each. The
connection `switchyard_alerts` says how: Slack, a webhook or e-mail; without it the log is all.

**When it runs.** Every minute, half a minute after `switchyard_control`. A driver that hangs is found sooner, by the
task that it runs in.

**Is it safe to run again?** Yes. It changes nothing that is healthy.

**When it fails.** A red run means that a person is needed; the last line of its log says for what. A run that started
the stream again is green, and the next one says what is left. A run of another colour needs no person.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import CronTriggerTimetable, dag

from switchyard.airflow.defaults import dag_arguments
from switchyard.airflow.health_operators import HealthOperator


@dag(
    dag_id=Path(__file__).stem,
    schedule=CronTriggerTimetable("* * * * * 30", timezone="UTC"),
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=5),
    **dag_arguments(__doc__, "health"),
)
def switchyard_health() -> None:
    HealthOperator(task_id="check_and_repair", retries=0)


health_dag = switchyard_health()
