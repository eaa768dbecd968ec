"""
# Keep the tables small and fast

**What it does.** Its tasks, one after the other:

| task | does |
|---|---|
| `retire_rows` | removes generations that retired long ago, except the one before the active one |
| `compact` | a Spark job that merges small files of the big tables into sorted ones |
| `small_tables` | the same for the small tables; old lines of `logs` and old heartbeats go |
| `vacuum` | deletes files and log entries that no version of the retention time needs |
| `clean_logs` | deletes old logs of tasks and processes, and Kafka settings of drivers that are gone |
| `report` | writes what was saved to `logs` and to its result |

`retire_rows` takes rows, checkpoint and spec of a generation after `SWITCHYARD_KEEP_RETIRED_DAYS`. A rollback goes to
the generation before the active one, so that one stays for any time.

The streams and swaps go on meanwhile. Where a stream has replaced a file first, the stream wins, and the file is
compacted the next time.

**When it runs.** Every night at 03:17 UTC, and when it is triggered by hand. In the form, *dry run* changes nothing and
says what would be done. `switchyard maintain` does the same without Airflow.

**Is it safe to run again?** Yes. Every step can be stopped anywhere and repeated; one with nothing to do does nothing.

**When it fails.** A step that fails does not keep the others from running; `report` is red and names it. The log of the
step says why. Nothing that is still needed was deleted: clear the task, or wait for the next night. A step of `vacuum`
that says that files are missing means that another program has deleted files of a table.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import CronTriggerTimetable, Param, chain, dag

from switchyard.airflow.batch_jobs import BatchJobOperator
from switchyard.airflow.defaults import dag_arguments
from switchyard.airflow.maintenance_operators import MaintenanceOperator, SavingsOperator

STEPS = ("retire_rows", "compact", "small_tables", "vacuum", "clean_logs")
PARAMS = {
    "dry_run": Param(False, type="boolean", title="Dry run", description="Only say what would be done."),
    "retention_hours": Param(
        None,
        type=["number", "null"],
        minimum=1,
        maximum=24 * 365,
        title="Retention in hours",
        description="Replaced files and old versions stay for so long. Empty: SWITCHYARD_VACUUM_RETENTION_HOURS.",
    ),
}


@dag(
    dag_id=Path(__file__).stem,
    schedule=CronTriggerTimetable("17 3 * * *", timezone="UTC"),
    params=PARAMS,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=12),
    **dag_arguments(__doc__, "maintenance"),
)
def switchyard_maintenance() -> None:
    compact = BatchJobOperator(
        task_id="compact",
        task_display_name="compact the big tables",
        job="maintain_tables.py",
        job_arguments=["--dry-run", "{{ params.dry_run | lower }}"],
        trigger_rule="all_done",
    )
    steps = [
        compact if step == compact.task_id else MaintenanceOperator(step=step, trigger_rule="all_done")
        for step in STEPS
    ]
    report = SavingsOperator(
        task_id="report", task_display_name="tell what was saved", steps=STEPS, trigger_rule="all_done"
    )
    chain(*steps, report)


maintenance_dag = switchyard_maintenance()
