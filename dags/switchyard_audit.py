"""
# Is the joined table right, and is nothing lost

**What it does.** Three tasks that do not wait for each other:

| task | asks |
|---|---|
| `compare` | a Spark job: is `joined` the join of `users` and `accounts` at the versions of one `progress` row? |
| `records` | does what the active generation has stored have holes? Kafka is asked what lies in each |
| `commands` | is every message of the control topic kept and settled, or under way? |

Results of `compare` go into the table `audits`; the health checks look at the newest one. The stream is not disturbed,
but on a small machine the Spark job takes processors from it for half a minute.

**When it runs.** Every hour, and by hand; the form can name another generation for `compare`. `switchyard audit` makes
the same comparison.

**Is it safe to run again?** Yes. It changes nothing but the table `audits`.

**When it fails.** Something is wrong with the data; trying again does not help. The last line of the red task's log
names positions of the first rows or records, never their values. Keep the log, roll back if the generation before is
right (`switchyard_rollback`), and write the join again: swap with `start` set to `earliest`, or use
`switchyard_backfill`. A task that failed because Kafka or Spark could not be reached says so and is tried again.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import CronTriggerTimetable, Param, dag

from switchyard.airflow.audit_operators import AuditJobOperator, CommandsOperator, RecordsOperator
from switchyard.airflow.defaults import dag_arguments

PARAMS = {
    "generation": Param(
        0,
        type="integer",
        minimum=0,
        title="Generation",
        description="Which generation is compared; 0 is the active one.",
    ),
}


@dag(
    dag_id=Path(__file__).stem,
    schedule=CronTriggerTimetable("17 * * * * 45", timezone="UTC"),
    params=PARAMS,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=50),
    **dag_arguments(__doc__, "health"),
)
def switchyard_audit() -> None:
    AuditJobOperator(task_id="compare", task_display_name="compare joined with the batch join")
    RecordsOperator(task_id="records", task_display_name="find holes in what was read")
    CommandsOperator(task_id="commands", task_display_name="find commands without an outcome")


audit_dag = switchyard_audit()
