"""What every DAG of this project shares, so that a DAG file holds wiring only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, AssetAlias, Context

DEFAULT_ARGS: dict[str, Any] = {
    "owner": "switchyard",
    "retries": 3,
    "retry_delay": timedelta(seconds=5),
}

# A generation runs for weeks, and Airflow never forgets a failed try. Going on from the checkpoint is right for as
# long as an outage may last.
STREAM_RETRIES = 100
STREAM_RETRY_DELAY = timedelta(seconds=5)

TOPIC_PATTERN = r"^[A-Za-z0-9._-]{0,249}$"
# Each event of these names what has happened, and to which generation.
GENERATIONS = Asset("switchyard_generations", uri="x-switchyard://generations", group="switchyard")
SWAPS_ASSET = Asset("switchyard_swaps", uri="x-switchyard://swaps", group="switchyard")
# An alias: a round in which nothing happened is no event.
SWAPS = AssetAlias("switchyard_swap_events", group="switchyard")

GENERATION_DAG = "switchyard_generation"
SPARK_CONNECTION = "spark_default"

MOMENT = r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?)?"
START_PATTERN = rf"^(|latest|earliest|resume|{MOMENT})$"
# Offsets are JSON; the task that takes the order reads them closely.
FROM_PATTERN = rf"^(|earliest|{MOMENT}|\{{.*\}})$"
TO_PATTERN = rf"^(|latest|{MOMENT}|\{{.*\}})$"


def dag_arguments(docstring: str | None, *tags: str) -> dict[str, Any]:
    """Return keyword arguments of `@dag`; the module's docstring is the runbook shown in the UI."""
    return {"doc_md": docstring, "tags": ["switchyard", *tags], "default_args": DEFAULT_ARGS, "catchup": False}


def name_user(context: Context) -> str:
    """Return what the history names as the requester of what a run asks for."""
    return f"airflow:{context['dag_run'].triggering_user_name or 'manual'}"
