"""The client side of a swap, for the command line and the page: send, follow, plan, roll back, retire, backfill."""

from __future__ import annotations

import getpass
import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from switchyard.deadline import Deadline
from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import TopicReader
from switchyard.local.kafka_settings import find_control_kafka, find_kafka
from switchyard.settings import Settings
from switchyard.swap.backfills import backfill_id, parse_order, publish_id
from switchyard.swap.commands import Answer, CommandHandler
from switchyard.swap.control_message import MOST_ID_CHARACTERS, parse_message
from switchyard.swap.decision import check_named_topics
from switchyard.swap.flip_rules import is_overdue
from switchyard.swap.history import FINISHED, ROLLBACK_PREFIX
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import describe, open_history
from switchyard.swap.reconcile import retire_now

BACKFILL_DAG = "switchyard_backfill"
HISTORY_POLL_SECONDS = 0.25
# The control DAG runs each minute even if the control watcher is broken.
PATIENCE_SECONDS = 90.0

OnLine = Callable[[str], None]


def send_swap(
    settings: Settings, fields: Mapping[str, Any], swap_id: str | None, requested_by: str | None = None
) -> str:
    """Publish a control message and return the id under which its outcome will be found.

    A message that can never become a swap, whatever broker and tables hold, is refused before it is sent.
    """
    chosen = _choose_id(swap_id, requested_by)
    value = json.dumps({**fields, "id": chosen}).encode()
    message = parse_message(value)
    check_named_topics(message.usersTopic, message.accountsTopic, settings.policy)
    publish(find_control_kafka(settings), settings.control_topic, value, requested_by or requester())
    return chosen


def make_dry_run(settings: Settings, fields: Mapping[str, Any], requested_by: str | None = None) -> Answer:
    message = parse_message(json.dumps({**fields, "dryRun": True}).encode())
    with TopicReader(find_kafka(settings)) as reader:
        return CommandHandler(settings, reader).take(message, _new_id("plan"), requested_by or requester())


def send_rollback(settings: Settings, swap_id: str | None, on_line: OnLine, requested_by: str | None = None) -> str:
    """Request the previous generation directly in the tables, so that a rollback needs neither topic nor DAG."""
    from switchyard.local.airflow_api import AirflowApi
    from switchyard.local.first_generation import DAG_ID

    chosen = ROLLBACK_PREFIX + _choose_id(swap_id, requested_by)
    with TopicReader(find_kafka(settings)) as reader:
        handler = CommandHandler(settings, reader)
        handler.roll_back(chosen, requested_by or requester())
        run = handler.next_run()
    if run is not None:
        try:
            AirflowApi.of(settings).trigger(DAG_ID, run.run_id, run.conf, run.note)
        except (SwitchyardError, OSError):
            on_line("Airflow did not answer; the control DAG starts the driver within a minute of its return")
    return chosen


def retire(settings: Settings, generation: int) -> None:
    """Retire a lingering generation directly in the tables; its driver ends when it reads that."""
    retire_now(settings, open_history(settings.layout), generation, f"asked for by {requester()}")


def send_backfill(settings: Settings, fields: Mapping[str, Any]) -> str:
    from switchyard.local.airflow_api import AirflowApi

    parse_order(fields)
    run_id = _new_id("cli")
    AirflowApi.of(settings).trigger(BACKFILL_DAG, run_id, fields, f"asked for by {requester()}")
    return run_id


def follow_backfill(settings: Settings, run_id: str, fields: Mapping[str, Any], on_line: OnLine) -> dict[str, Any]:
    """Print the events of a backfill as they come and, if it is to be published, those of the swap."""
    if not fields.get("generation"):
        finished = follow(settings, backfill_id(run_id), on_line, BACKFILL_DAG)
        if not fields.get("publish") or finished["outcome"] != FINISHED:
            return finished
    return follow(settings, publish_id(run_id), on_line, BACKFILL_DAG)


def follow(settings: Settings, swap_id: str, on_line: OnLine, taker: str = "switchyard_control") -> dict[str, Any]:
    """Print each event of a swap as it comes; return its outcome."""
    history = HistoryStore(settings.layout)
    began, patience = time.monotonic(), Deadline(PATIENCE_SECONDS)
    printed, is_deadline_printed = 0, False
    while True:
        ledger = history.ledger()
        entries = [entry for entry in ledger.entries if entry.swapId == swap_id]
        for entry in entries[printed:]:
            on_line(f"{time.monotonic() - began:5.1f} s  {entry.event:10}  {describe(entry)}")
        printed = len(entries)
        outcome = ledger.outcomes.get(swap_id)
        if outcome is not None:
            return {
                "swapId": swap_id,
                "outcome": str(outcome.event),
                "generation": outcome.generation,
                "detail": outcome.detail,
                "seconds": round(time.monotonic() - began, 1),
            }
        if not entries and patience.has_passed:
            raise SwitchyardError(
                f"{swap_id} was not taken within {PATIENCE_SECONDS:g} s: is the DAG {taker} running? "
                "It takes the message when it runs again; `switchyard history` shows the outcome"
            )
        request = ledger.find(swap_id)
        if request is not None and not is_deadline_printed and is_overdue(request, datetime.now(UTC)):
            is_deadline_printed = True
            on_line("its deadline is over; it is settled within a minute")
        time.sleep(HISTORY_POLL_SECONDS)


def requester() -> str:
    with suppress(KeyError, OSError, ImportError):
        return f"cli:{getpass.getuser()}"
    return "cli:unknown"


def _new_id(kind: str) -> str:
    return f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def _choose_id(asked: str | None, requested_by: str | None) -> str:
    if asked is None:
        return _new_id("page" if requested_by else "cli")
    if not 0 < len(asked.strip()) <= MOST_ID_CHARACTERS:
        raise InputError(f"--id needs 1 to {MOST_ID_CHARACTERS} characters")
    return asked.strip()
