"""What the tasks of a generation's run do. Modules that open Delta tables are imported when a task runs, never
when a DAG is parsed: delta-rs does not survive the fork of a task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from switchyard.airflow.defaults import name_user
from switchyard.errors import FencedError
from switchyard.settings import Settings, load_settings
from switchyard.swap.history import HOSTED_PREFIX, Entry, Event, Request

FORM_FIELDS = {
    "usersTopic": "users_topic",
    "accountsTopic": "accounts_topic",
    "joinType": "join_type",
    "start": "start",
    "dryRun": "dry_run",
    "deadlineSeconds": "deadline_seconds",
}
"""The fields of a control message and the parameters of the form."""

FAILED_STATES = frozenset({"failed", "upstream_failed"})


def admit_run(settings: Settings, kafka: Mapping[str, str], context: Context) -> Request:
    """Find the request of a run, or make one from its parameters. Raise when there is nothing to run."""
    run = context["dag_run"]
    swap_id = str((run.conf or {}).get("swap_id") or "")
    if swap_id:
        return _admit_known(settings, swap_id)
    return _admit_manual(settings, kafka, f"{HOSTED_PREFIX}{run.run_id}", name_user(context), context["params"])


def _admit_known(settings: Settings, swap_id: str) -> Request:
    from switchyard.swap.log_messages import open_history

    ledger = open_history(settings.layout).ledger()
    request = ledger.find(swap_id)
    if request is None:
        raise AirflowFailException(
            f"There is no request {swap_id}: a run with a swap_id is started by switchyard_control"
        )
    _end_unless_applied(ledger.outcomes.get(swap_id))
    return request


def _admit_manual(
    settings: Settings, kafka: Mapping[str, str], swap_id: str, requested_by: str, params: Mapping[str, Any]
) -> Request:
    from switchyard.kafka.topics import TopicReader
    from switchyard.swap.commands import CommandHandler

    fields = {name: params.get(param) for name, param in FORM_FIELDS.items()}
    with TopicReader(kafka) as reader:
        answer = CommandHandler(settings, reader).take_value(json.dumps(fields).encode(), swap_id, requested_by)
    _end_unless_applied(answer.outcome)
    if answer.request is None:
        raise AirflowFailException(f"{swap_id} was not accepted")
    return answer.request


def _end_unless_applied(outcome: Entry | None) -> None:
    """Raise when a request is settled: its run has nothing to do, unless its generation is active or lingers."""
    if outcome is None or outcome.event is Event.APPLIED:
        return
    text = f"{outcome.swapId} is {outcome.event}: {outcome.detail}"
    if outcome.event in (Event.FAILED, Event.REJECTED):
        raise AirflowFailException(f"{text}. To try again, send the command again or trigger a new run.")
    raise AirflowSkipException(text)


def judge_end(settings: Settings, request: Request, exit_code: int | None) -> None:
    """Decide what the end of a driver means for its task. Return if the driver has retired or is to be restarted."""
    from switchyard.swap.log_messages import open_history
    from switchyard.swap.reconcile import fail_pending, log_about_active, reconcile

    history = open_history(settings.layout)
    is_fenced = exit_code == FencedError.exit_code
    if exit_code != 0 and not is_fenced:
        reason = f"its driver ended with exit code {exit_code} before the flip; the end of the log of `stream` says why"
        fail_pending(settings, history, request.swapId, reason)
    reconcile(settings, history)
    _end_unless_applied(history.ledger().outcomes.get(request.swapId))
    if is_fenced:
        raise AirflowSkipException(
            f"A newer attempt of generation {request.generation} has taken over; this one wrote nothing more."
        )
    if exit_code is not None and is_killed(exit_code):
        # A driver that fails writes the reason into the logs; one that was killed cannot.
        text = f"was killed (exit code {exit_code}) and is started again"
        log_about_active(settings, history, request.swapId, text, "ERROR")


def is_under_way(settings: Settings, request: Request) -> bool:
    """Return whether the swap of a run has no outcome yet."""
    from switchyard.swap.log_messages import open_history

    return request.swapId not in open_history(settings.layout).ledger().outcomes


def is_killed(exit_code: int) -> bool:
    # Python reports a signal as a negative code, a shell as 128 and more.
    return exit_code < 0 or exit_code > 128


def close_from_run(context: Context) -> dict[str, Any]:
    """Report what became of the generation. Fail if `stream` did, because a run has the state of its last task."""
    from switchyard.swap.log_messages import open_history
    from switchyard.swap.reconcile import reconcile
    from switchyard.tables.logs import write_log

    run, settings = context["dag_run"], load_settings()
    history = open_history(settings.layout)
    reconcile(settings, history)
    ledger = history.ledger()
    swap_id = str((run.conf or {}).get("swap_id") or f"{HOSTED_PREFIX}{run.run_id}")
    request, outcome = ledger.find(swap_id), ledger.outcomes.get(swap_id)
    state = stream_state(run.dag_id, run.run_id)
    found: dict[str, Any] = {
        "swapId": swap_id,
        "generation": request.generation if request else None,
        "outcome": str(outcome.event) if outcome else None,
        "stream": state,
    }
    if state in FAILED_STATES:
        is_active = request is not None and history.status_row().generation == request.generation
        if request is not None and is_active:
            text = f"the driver of generation {request.generation} was given up; clear its task `stream` to go on"
            write_log(settings.layout, text, level="ERROR", generation=request.generation, swap_id=swap_id)
        raise AirflowFailException(outcome.detail if outcome and not is_active else f"the stream task is {state}")
    return found


def stream_state(dag_id: str, run_id: str) -> str | None:
    """Return the state of the task that keeps a driver alive; None when there is no such run."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=["stream"], run_ids=[run_id])
    state = states.get(run_id, {}).get("stream")
    return None if state is None else str(state)
