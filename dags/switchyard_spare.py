"""
# The spare driver

**What it does.** One run is one spare driver: a Spark driver that has started, has rehearsed on the newest records of
the active topics, and waits for the arguments of a generation. The next run of `switchyard_generation` that needs a
driver takes it, so that a swap need not wait for a JVM to start and warm up. From that moment the driver belongs to
the task `stream` there, which shows its log and judges its end. The task here ends, and the next run starts the next
spare.

| task | does |
|---|---|
| `wait` | waits until no swap is under way, starts the driver, and watches it until it is taken |

**When it runs.** All the time, one run after another, when `SWITCHYARD_SPARE` is on; never when it is off. It takes the
memory of one more driver (`SWITCHYARD_DRIVER_MEMORY`).

**Is it safe to run again?** Yes. A spare has no generation and writes no table. Clearing or failing `wait` ends a spare
that is not taken, and leaves one that was taken alone. Whatever happens here, a swap that gets no spare within two
seconds submits a driver.

**When it fails.**
- `wait` waits for a retry: the spare driver has ended by itself. Read the end of its log: most often memory, or a
  Spark master that does not answer. Tries become rarer, up to one in ten minutes.
- It is ended and started again when code, jars, settings or connections have changed, and when it hangs.
- To do without it: `SWITCHYARD_SPARE=false`, then `switchyard down` and `switchyard up`, or pause this DAG and mark
  `wait` as failed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import dag

from switchyard.airflow.defaults import STREAM_RETRIES, STREAM_RETRY_DELAY, dag_arguments
from switchyard.airflow.spare_tasks import SpareOperator
from switchyard.settings import load_settings

# Without a date in the past the second run of `@continuous` gets the logical date of the first and is never made
# (Airflow 3.3.2: a first interval from now to now, whose end is the start of the next).
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


@dag(
    dag_id=Path(__file__).stem,
    schedule="@continuous" if load_settings().spare else None,
    start_date=BEGINNING,
    max_active_runs=1,
    **dag_arguments(__doc__, "stream"),
)
def switchyard_spare() -> None:
    SpareOperator(
        task_id="wait",
        task_display_name="wait for a generation",
        retries=STREAM_RETRIES,
        retry_delay=STREAM_RETRY_DELAY,
        retry_exponential_backoff=2,
        max_retry_delay=timedelta(minutes=10),
    )


spare_dag = switchyard_spare()
