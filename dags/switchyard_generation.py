"""
# One generation of the stream

**What it does.** One run is one generation: a Spark driver that reads a users topic and an accounts topic,
joins them and keeps the result in the Delta tables. When it is ready it becomes the active generation; the
one before it lingers a few seconds and retires.

| task | does |
|---|---|
| `preflight` | checks the topics and the start position, gives the generation its number |
| `stream` | runs the driver for as long as the generation lives; its log is the driver's log |
| `close` | writes the outcome into `swap_history`; red if the stream failed |

**When it runs.** Only when it is triggered: by hand with the form, or by `switchyard up`.

**Is it safe to run again?** Yes. Clearing `stream` stops its driver after the batch in hand and resumes
from the same checkpoint; every batch is written once. Clearing the whole run keeps its number, unless it had
failed: then it asks again. A new trigger is a new generation.

**How to stop it.** Mark `stream` as failed or successful: the driver finishes its batch and ends. A
replaced generation ends by itself, and its run turns green.

**When it fails.**
- `preflight` is red: the request was refused, nothing was started. Its log says why in one sentence.
- `stream` waits for a retry: the driver died and is started again from its checkpoint. Read the end of the
  log of the last try. Most often the broker cannot be reached, or Kafka no longer holds records the
  checkpoint still needs.
- `stream` is skipped: a newer attempt of the same generation has taken over. Nothing to do.
- `close` is red: the stream was given up. Mend the cause, then clear `stream` with its downstream tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from switchyard.airflow.defaults import (
    MAX_GENERATIONS,
    START_PATTERN,
    STREAM_RETRIES,
    STREAM_RETRY_DELAY,
    TOPIC_PATTERN,
    dag_arguments,
)
from switchyard.airflow.generation_tasks import close_from_run, request_from_run
from switchyard.airflow.submit import GenerationSubmitOperator
from switchyard.layout import JOIN_TYPES, PROJECT
from switchyard.settings import load_settings

APPLICATION = PROJECT / "jobs" / "stream_generation.py"
DEFAULTS = load_settings()

PARAMS = {
    "users_topic": Param(
        DEFAULTS.users_topic,
        type="string",
        pattern=TOPIC_PATTERN,
        title="Users topic",
        description="An existing Kafka topic with user records. Letters, digits, dot, underscore and dash.",
    ),
    "accounts_topic": Param(
        DEFAULTS.accounts_topic,
        type="string",
        pattern=TOPIC_PATTERN,
        title="Accounts topic",
        description="An existing Kafka topic with account records; not the users topic.",
    ),
    "join_type": Param(
        DEFAULTS.join_type,
        type="string",
        enum=list(JOIN_TYPES),
        title="Join type",
        description="left and inner: every pair of events. natural: each user event with the latest account. "
        "asof: each account event with the user as of its time.",
    ),
    "start": Param(
        "latest",
        type="string",
        pattern=START_PATTERN,
        title="Start position",
        description="latest, earliest, resume (go on where the newest retired generation with the same "
        "topics and join type stopped), or an ISO timestamp such as 2026-01-31T08:00:00Z.",
    ),
}


@dag(
    dag_id=Path(__file__).stem,
    schedule=None,
    params=PARAMS,
    max_active_runs=MAX_GENERATIONS,
    **dag_arguments(__doc__, "stream"),
)
def switchyard_generation() -> None:
    @task(task_display_name="preflight: check the request")
    def preflight() -> dict[str, Any]:
        context = get_current_context()
        run = context["dag_run"]
        return request_from_run(context["params"], run.run_id, run.triggering_user_name)

    @task(trigger_rule="all_done", task_display_name="close: write the outcome")
    def close() -> str:
        context = get_current_context()
        run = context["dag_run"]
        return close_from_run(context["ti"].xcom_pull(task_ids="preflight"), run.dag_id, run.run_id)

    def requested(name: str) -> str:
        return "{{ ti.xcom_pull(task_ids='preflight')['" + name + "'] }}"

    stream = GenerationSubmitOperator(
        task_id="stream",
        application=str(APPLICATION),
        generation=requested("generation"),
        users_topic=requested("users_topic"),
        accounts_topic=requested("accounts_topic"),
        join_type=requested("join_type"),
        start=requested("start"),
        retries=STREAM_RETRIES,
        retry_delay=STREAM_RETRY_DELAY,
    )
    preflight() >> stream >> close()


generation_dag = switchyard_generation()
