"""
# One generation of the stream

**What it does.** One run is one generation: a Spark driver that reads a users topic and an accounts topic,
joins them and keeps the result in the Delta tables. When it is ready it becomes the active generation; the
one before it lingers a few seconds and retires, or is kept, with `SWITCHYARD_KEEP_GENERATIONS`, and retires later.

| task | does |
|---|---|
| `stream` | checks the request, then runs the driver for as long as the generation lives; its log is the driver's log |
| `close` | says what became of the swap, removes what a failed swap has left; red if the stream failed |

**When it runs.** Started by `switchyard_control` for an accepted swap: the run id names the generation, the note
says what was asked for and by whom. Or triggered by hand with the form: that is a swap like one asked for by a
control message. What is left empty stays as it is; if nothing would change, `stream` is skipped.

**Is it safe to run again?** Yes. Clearing `stream` stops its driver after the batch in hand and resumes
from the same checkpoint; every batch is written once. A run whose swap was rejected, superseded or has failed
does nothing when it is cleared: send the command again, or trigger a new run.

**How to stop it.** Mark `stream` as successful: the driver finishes its batch and ends. Marked as failed, the active
generation is started again by `switchyard_health`. A replaced generation ends by itself, or by `switchyard retire N`,
and its run turns green.

**When it fails.**
- `stream` is red at once: the request was rejected, or the new generation failed before its flip. The last
  line of the log says why. The active generation is untouched.
- `stream` waits for a retry: the driver of the active generation died and is started again from its checkpoint.
  Read the end of the log of the last try. Most often the broker cannot be reached, or Kafka no longer holds
  records the checkpoint still needs.
- `stream` is skipped: nothing was to be done, the swap was superseded, or a newer attempt has taken over.
- `close` is red after a long life: the stream was given up. `switchyard_health` starts another run for it. Repair
  the cause, or roll back with `switchyard_rollback`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from switchyard.airflow.defaults import (
    GENERATIONS,
    START_PATTERN,
    STREAM_RETRIES,
    STREAM_RETRY_DELAY,
    dag_arguments,
)
from switchyard.airflow.form_params import TARGET_PARAMS
from switchyard.airflow.generation_operator import GenerationSubmitOperator
from switchyard.airflow.generation_tasks import close_from_run
from switchyard.layout import PROJECT
from switchyard.settings import load_settings
from switchyard.swap.control_message import MOST_DEADLINE_SECONDS

APPLICATION = PROJECT / "jobs" / "stream_generation.py"

PARAMS = {
    **TARGET_PARAMS,
    "start": Param(
        "",
        type=["string", "null"],
        pattern=START_PATTERN,
        title="Start position",
        description="Empty: latest, if anything changes. earliest, or an ISO timestamp such as 2026-01-31T08:00:00Z: "
        "also reads the same topics again. resume: goes on where the newest retired generation with the same topics "
        "and join type stopped.",
    ),
    "dry_run": Param(
        False,
        type="boolean",
        title="Dry run",
        description="Only write into the history and the log what would happen.",
    ),
    "deadline_seconds": Param(
        None,
        type=["number", "null"],
        exclusiveMinimum=0,
        maximum=MOST_DEADLINE_SECONDS,
        title="Deadline in seconds",
        description="The swap fails if it has not flipped after so many seconds. Empty: what its records need.",
    ),
}


@dag(
    dag_id=Path(__file__).stem,
    schedule=None,
    params=PARAMS,
    max_active_runs=load_settings().most_generations,
    **dag_arguments(__doc__, "stream"),
)
def switchyard_generation() -> None:
    @task(trigger_rule="all_done", task_display_name="close: say what became of it", outlets=[GENERATIONS])
    def close() -> dict[str, Any]:
        context = get_current_context()
        found = close_from_run(context)
        context["outlet_events"][GENERATIONS].extra = found
        return found

    stream = GenerationSubmitOperator(
        task_id="stream",
        application=str(APPLICATION),
        retries=STREAM_RETRIES,
        retry_delay=STREAM_RETRY_DELAY,
    )
    stream >> close()


generation_dag = switchyard_generation()
