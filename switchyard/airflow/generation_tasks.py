"""What the preflight and close tasks do. Modules that open Delta tables are imported when a task runs, never
when a DAG is parsed: delta-rs does not survive the fork of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException

from switchyard.airflow.submit import KAFKA_CONNECTION
from switchyard.errors import InputError
from switchyard.settings import load_settings

FAILED_STATES = frozenset({"failed", "upstream_failed"})


def request_from_run(params: Mapping[str, Any], run_id: str, user: str | None) -> dict[str, Any]:
    """Registers the run as a generation. A second call for the same run gives the same generation."""
    from switchyard.generations import request_generation
    from switchyard.kafka.client import client_properties

    wanted = {name: str(params[name]) for name in ("users_topic", "accounts_topic", "join_type", "start")}
    try:
        kafka = client_properties(BaseHook.get_connection(KAFKA_CONNECTION).extra_dejson)
        generation = request_generation(
            load_settings(), **wanted, swap_id=run_id, requested_by=f"airflow:{user or 'manual'}", kafka=kafka
        )
    except InputError as error:
        raise AirflowFailException(str(error)) from None
    return {"generation": generation, **wanted}


def close_from_run(request: Mapping[str, Any] | None, dag_id: str, run_id: str) -> str:
    """Settles the generation, and fails when its stream failed: Airflow colours a run by its last task."""
    from switchyard.generations import close_generation, close_request

    if request is None:
        found = close_request(load_settings(), run_id, "its preflight did not succeed; see the task's log")
        raise AirflowFailException(f"No driver was started: {found}")

    state = stream_state(dag_id, run_id)
    has_failed = state in FAILED_STATES
    found = close_generation(
        load_settings(),
        int(request["generation"]),
        failed=has_failed,
        reason=f"its stream task ended as {state}",
    )
    if has_failed:
        raise AirflowFailException(found)
    return found


def stream_state(dag_id: str, run_id: str) -> str:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=["stream"], run_ids=[run_id])
    return str(states.get(run_id, {}).get("stream", "unknown"))
