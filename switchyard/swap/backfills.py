"""Order a snapshot of history, and publish it by a flip when the Spark job (`stream/backfill.py`) has finished it.

Publishing needs no Spark: the job has proven the rows before it ended, so the request for the snapshot flips at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from switchyard.errors import InputError
from switchyard.kafka.topics import TopicReader
from switchyard.layout import JOIN_TYPES, Layout
from switchyard.offsets import Offsets, count_records
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.swap import retirement_rules, transitions
from switchyard.swap.commands import Answer, CommandHandler
from switchyard.swap.control_message import normalise_join
from switchyard.swap.decision import check_target
from switchyard.swap.generations import keep_draft, load_spec, require_access
from switchyard.swap.history import BACKFILL_PREFIX, PUBLISH_PREFIX, Entry, Event, Request, StatusRow, SwapHistory
from switchyard.swap.ranges import Edge, check_order, parse_edge, resolve_range
from switchyard.swap.reconcile import clean_up
from switchyard.swap.transitions import OpenCommand
from switchyard.tables.logs import write_log
from switchyard.tables.removal import delete_uncommitted
from switchyard.tables.stable_names import newest_rows
from switchyard.wording import shorten

FLIP_POLL_SECONDS = 0.25
RECENT_LINES = 1_000
JOB_LOG_HINT = "the log of the task `build` has the details"


@dataclass(frozen=True)
class BackfillOrder:
    """The fields of a form or a command line; None keeps what is active."""

    usersTopic: str | None
    accountsTopic: str | None
    joinType: str | None
    start: Edge
    end: Edge

    def target(self, status_row: StatusRow, defaults: Target) -> Target:
        current = status_row.target or defaults
        return Target(
            self.usersTopic or current.usersTopic,
            self.accountsTopic or current.accountsTopic,
            self.joinType or current.joinType,
        )


def parse_order(fields: Mapping[str, Any]) -> BackfillOrder:
    """Read the parameters of the form; raise InputError if one is not valid."""
    for name in ("users_topic", "accounts_topic", "join_type", "from", "to"):
        if not isinstance(fields.get(name) or "", str):
            raise InputError(f"{name} must be a text")
    given = {name: (fields.get(name) or "").strip() or None for name in ("users_topic", "accounts_topic", "join_type")}
    join_type, warnings = normalise_join(given["join_type"])
    if warnings:
        raise InputError(f"{shorten(str(given['join_type']))!r} is not a join type; use {', '.join(JOIN_TYPES)}")
    start, end = parse_edge("from", fields.get("from")), parse_edge("to", fields.get("to"))
    check_order(start, end)
    return BackfillOrder(given["users_topic"], given["accounts_topic"], join_type, start, end)


def backfill_id(run_id: str) -> str:
    return f"{BACKFILL_PREFIX}{run_id}"


def publish_id(run_id: str) -> str:
    return f"{PUBLISH_PREFIX}{run_id}"


class BackfillHandler(CommandHandler):
    def order(self, fields: Mapping[str, Any], swap_id: str, requested_by: str) -> Answer:
        return self._settle_or_accept(swap_id, requested_by, partial(self._decide_order, fields))

    def _decide_order(self, fields: Mapping[str, Any], command: OpenCommand) -> tuple[Entry, None]:
        order = parse_order(fields)
        target = order.target(command.status_row, self.settings.policy.defaults)
        check_target(target, self.settings.policy, self.reader.list_topics())
        spec = resolve_backfill(self.settings, self.reader, target, order)
        keep_draft(self.settings.layout, command.swapId, spec)
        records = count_records(spec.startOffsets, spec.readyOffsets)
        detail = f"to {shorten(str(spec.end))}, {records} records"
        return command.ask_for_snapshot(target, shorten(spec.start), detail), None

    def publish(self, generation: int, swap_id: str, requested_by: str) -> Answer:
        """Ask for a finished snapshot to become active: a swap like any other."""
        if not self.history.ledger().is_known(swap_id):
            self._log(f"received from {requested_by}: publish generation {generation}", swap_id)
        return self._settle_or_accept(swap_id, requested_by, partial(self._decide_publication, generation))

    def _decide_publication(self, generation: int, command: OpenCommand) -> tuple[Entry, None]:
        ledger = command.ledger
        snapshot = ledger.snapshots.get(generation)
        if snapshot is None:
            raise InputError(f"generation {generation} is no backfill; `switchyard history` names those that are")
        if not ledger.is_finished(generation):
            raise InputError(f"the backfill of generation {generation} is not finished; publish it when it is")
        if ledger.is_removed(generation) or load_spec(self.settings.layout, generation) is None:
            raise InputError(f"the rows of generation {generation} were removed after their keep time; order it again")
        detail = f"from generation {command.status_row.generation} to the snapshot of generation {generation}"
        # `resume`, as for a rollback: a later message must not inherit the start of the snapshot.
        return self._ask_for(command, generation, snapshot.target, "resume", detail), None

    def wait_for_flip(self, answer: Answer) -> Answer:
        """Poll until the last flip is old enough for another one, or the deadline of the request has passed."""
        while answer.outcome is None and answer.request is not None:
            time.sleep(FLIP_POLL_SECONDS)
            answer = self._look_again(answer.swapId)
        return answer


def resolve_backfill(settings: Settings, reader: TopicReader, target: Target, order: BackfillOrder) -> GenerationSpec:
    """Ask the broker which offsets the range means now; records that arrive later are not part of it."""
    topics = (target.usersTopic, target.accountsTopic)
    require_access(reader, target)
    bounds = {topic: reader.bounds(topic) for topic in topics}
    at_moment: dict[str, Offsets] = {
        side: {topic: reader.offsets_at(topic, edge.text) for topic in topics}
        for side, edge in (("from", order.start), ("to", order.end))
        if edge.moment is not None
    }
    starts, ends = resolve_range(target, order.start, order.end, bounds, at_moment)
    return GenerationSpec(
        **asdict(target),
        generation=0,
        start=order.start.text,
        end=order.end.text,
        startOffsets=starts,
        readyOffsets=ends,
        stateRetention=settings.state_retention,
        requestedAt=datetime.now(UTC),
    )


def settle_snapshot(settings: Settings, history: SwapHistory, snapshot: Request, event: Event, detail: str) -> Entry:
    """End the command for a snapshot as FINISHED or FAILED, once; remove the rows of one that failed."""
    transitions.note(history, snapshot.entry(event, detail))
    if retirement_rules.is_abandoned(history.ledger(), snapshot.generation):
        clean_up(settings.layout, history, snapshot.generation)
        if event is Event.FAILED:
            # The files may be many and hold values of rejected records: do not wait for vacuum.
            delete_uncommitted(settings.layout, snapshot.generation)
    return history.ledger().outcomes[snapshot.swapId]


def log_failure(layout: Layout, snapshot: Request, attempt: int, reason: str) -> None:
    """Log an attempt that failed; Airflow may start another one."""
    text = f"attempt {attempt} of the backfill of generation {snapshot.generation} failed: {reason}"
    write_log(layout, text, level="ERROR", generation=snapshot.generation, swap_id=snapshot.swapId)


def explain_end(layout: Layout, snapshot: Request, state: str) -> str:
    """Say why the job of a snapshot ended without an outcome: what its last attempt logged, if it could."""
    rows = newest_rows(layout, "orchestrator_logs", RECENT_LINES)
    told = [str(row["msg"]) for row in rows if row["swapId"] == snapshot.swapId and row["level"] == "ERROR"]
    why = told[-1] if told else f"its job was killed or could not start; {JOB_LOG_HINT}"
    return f"its task ended as {state} before it was built: {why}"


def require_snapshot(settings: Settings, generation: int) -> GenerationSpec:
    spec = load_spec(settings.layout, generation)
    if spec is None or not spec.is_snapshot:
        raise InputError(f"generation {generation} was not ordered as a backfill; order one with switchyard_backfill")
    return spec
