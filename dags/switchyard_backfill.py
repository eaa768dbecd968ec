"""
# A snapshot of history

**What it does.** Writes the join of a range of two topics as a batch, into a separate generation, and on request
makes it the active one.

| task | does |
|---|---|
| `build` | checks the order, then runs the Spark job; its log shows how far it is |
| `publish` | flips to the finished snapshot, like a swap; skipped unless the form asks for it |
| `close` | says what became of it; what a failed job has written is removed |

The range is fixed when the order is taken: records that come later are not part of it. A range of time begins with the
first record of each partition at or after *from*, and ends before the first one at or after *to*. The job runs beside
everything else: it neither stops a swap nor is stopped by one, and has no deadline. Before it counts as finished, its
rows are compared with the join of its users and accounts.

A published snapshot is finished: no driver runs for it, and nothing is added. `switchyard rollback` goes back to the
stream, which reads what it has missed. A message with a `start` also asks for a stream again.

**When it runs.** Only when it is triggered by hand: with the form, or with `switchyard backfill`. To publish a snapshot
that was written before, give its number as *Finished generation*; the other fields do not count then.

**Is it safe to run again?** Yes. Clearing `build` goes on where the last try ended, and does nothing when the snapshot
is finished. Each record is written once. Clearing `publish` repeats nothing: one run is one command. A new run writes
another snapshot.

**When it fails.**
- `build` is red at once: the order was refused, and the log says why in one sentence. Nothing was touched. Correct
  it and trigger a new run.
- `build` is red with *Kafka no longer holds …*: retention has deleted the beginning of the range. Begin later.
- `build` waits for a retry: the job died, or the broker was away. It goes on by itself.
- `build` is red with *the data gate is shut*: keep its log, this is a fault in the join or on the disk.
- `publish` is red: the snapshot is not finished, or its rows were removed. It is skipped when a newer request came
  first: trigger a run with the number of the generation to publish it later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from switchyard.airflow.backfill_tasks import (
    BUILD_TASK,
    PUBLISH_TASK,
    BackfillOperator,
    PublishOperator,
    close_from_run,
)
from switchyard.airflow.defaults import FROM_PATTERN, GENERATIONS, TO_PATTERN, dag_arguments
from switchyard.airflow.form_params import TARGET_PARAMS
from switchyard.layout import PROJECT

APPLICATION = PROJECT / "jobs" / "backfill_generation.py"

PARAMS = {
    **TARGET_PARAMS,
    "from": Param(
        "earliest",
        type=["string", "null"],
        pattern=FROM_PATTERN,
        title="From",
        description="earliest, an ISO timestamp such as 2026-01-31T08:00:00Z, or offsets such as "
        '{"users": {"0": 10}}; partitions that are not named are read from their first record.',
    ),
    "to": Param(
        "latest",
        type=["string", "null"],
        pattern=TO_PATTERN,
        title="To",
        description="latest (the end of the topics now), an ISO timestamp, or offsets such as "
        '{"users": {"0": 99}}: up to and without these. Partitions that are not named are read to their end.',
    ),
    "publish": Param(
        False,
        type="boolean",
        title="Publish",
        description="Make the finished snapshot the active generation.",
    ),
    "generation": Param(
        None,
        type=["integer", "null"],
        minimum=1,
        title="Finished generation",
        description="The number of a snapshot that was written before and is to be published now; writes no other.",
    ),
}


@dag(dag_id=Path(__file__).stem, schedule=None, params=PARAMS, max_active_runs=2, **dag_arguments(__doc__, "backfill"))
def switchyard_backfill() -> None:
    @task(trigger_rule="all_done", retries=0, task_display_name="close: say what became of it", outlets=[GENERATIONS])
    def close() -> dict[str, Any]:
        context = get_current_context()
        found = close_from_run(context)
        context["outlet_events"][GENERATIONS].extra = found
        return found

    build = BackfillOperator(
        task_id=BUILD_TASK,
        task_display_name="build the snapshot",
        application=str(APPLICATION),
    )
    publish = PublishOperator(task_id=PUBLISH_TASK, task_display_name="publish it", retries=1)
    build >> publish >> close()


backfill_dag = switchyard_backfill()
