"""Handle a command, from the topic, Airflow or the CLI: settle it at once, or accept it as a request.

A caller may crash at any line and call again with the same swap id: what is written once stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka.topics import TopicReader
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap import flip, flip_rules, transitions
from switchyard.swap.control_message import Message, parse_message, read_id
from switchyard.swap.decision import Decision, DecisionKind, UnknownTopicError, decide
from switchyard.swap.generations import (
    adopt_draft,
    drop_draft,
    find_resumable_spec,
    keep_draft,
    keep_spec,
    load_spec,
    require_access,
    require_spec,
    resolve_spec,
)
from switchyard.swap.history import (
    BOOT_ID,
    Entry,
    Event,
    Ledger,
    Request,
    StatusRow,
    first_swap_id,
    is_snapshot_id,
    next_swap_id,
)
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import open_history
from switchyard.swap.planning import (
    Plan,
    allow_seconds,
    count_to_read,
    count_unread,
    describe_deadline,
    find_ends,
    make_plan,
)
from switchyard.swap.reconcile import Run, fail_pending, run_of
from switchyard.swap.transitions import OpenCommand
from switchyard.tables.logs import LogLevel, write_log
from switchyard.wording import shorten


@dataclass(frozen=True)
class Answer:
    """The result of a command: an outcome, or a request whose outcome is still open."""

    swapId: str
    outcome: Entry | None = None
    request: Request | None = None
    plan: Plan | None = None

    def document(self) -> dict[str, Any]:
        event = self.outcome.event if self.outcome else Event.REQUESTED
        generation = self.outcome.generation if self.outcome else self.request and self.request.generation
        document = {"swapId": self.swapId, "outcome": str(event), "generation": generation}
        document["detail"] = self.outcome.detail if self.outcome else ""
        return document | ({"plan": asdict(self.plan)} if self.plan else {})


@dataclass
class CommandHandler:
    """Asks the broker what the pure rules need, and writes specs. `decision.py` decides."""

    settings: Settings
    reader: TopicReader
    history: HistoryStore = field(init=False)

    def __post_init__(self) -> None:
        self.history = open_history(self.settings.layout)
        self._last_logged: tuple[str, str] | None = None

    def take_value(
        self,
        value: bytes | None,
        swap_id: str,
        requested_by: str,
        is_again: bool = False,
        before: Ledger | None = None,
    ) -> Answer:
        """Handle the bytes of a control message. An id in the message replaces `swap_id`.

        With `is_again` the same message was read before, by this or another process: nothing is logged twice. `before`
        is the history as it was before any process could take this message: an id in it is that of another message.
        """
        try:
            own_id = read_id(value)
            self._check_place(own_id, swap_id)
            swap_id = own_id or swap_id
            message = parse_message(value)
        except InputError as error:
            rejected = str(error)
            return self._settle_or_accept(
                swap_id, requested_by, lambda own: (own.settle(Event.REJECTED, rejected), None), is_again, before
            )
        return self.take(message, swap_id, requested_by, is_again, before)

    def _check_place(self, given: str | None, swap_id: str) -> None:
        """Refuse an id that has the form topic-partition-offset: it would stand for the message at that place."""
        place = rf"{re.escape(self.settings.control_topic)}-\d+-\d+(-\d+)?"
        if given is not None and given != swap_id and re.fullmatch(place, given):
            raise InputError(f"the id {given} is that of another message; choose one of your own")

    def take(
        self, message: Message, swap_id: str, requested_by: str, is_again: bool = False, before: Ledger | None = None
    ) -> Answer:
        before = before or self.history.ledger()
        if not is_again and not before.is_known(swap_id):
            self._log(f"received from {requested_by}: {_describe(message)}", swap_id)
            for warning in message.warnings:
                self._log(warning, swap_id, "WARNING")
        return self._settle_or_accept(swap_id, requested_by, partial(self._decide_message, message), is_again, before)

    def boot(self) -> Answer | None:
        """Ask for the defaults if no generation is active and no request is open; else return None."""
        ledger, status_row = self.history.ledger(), self.history.status_row()
        if status_row.generation is not None or ledger.open_requests:
            return None
        command = OpenCommand(next_swap_id(ledger, BOOT_ID), "switchyard", ledger, status_row)
        try:
            entry, _ = self._decide_message(Message(), command)
        except InputError as error:
            # The control DAG tries this each minute: do not write the same refusal again.
            last = [entry for entry in ledger.entries if first_swap_id(entry.swapId) == BOOT_ID]
            if last and last[-1].detail == str(error):
                return Answer(last[-1].swapId, last[-1])
            entry = command.settle(Event.REJECTED, str(error))
        # After a lost race the next round tries again.
        return self._answer(entry) if self.history.commit_next(ledger, [entry]) else None

    def roll_back(self, swap_id: str, requested_by: str) -> Answer:
        """Ask for the previous generation: at once if it still lingers, else by resuming its checkpoint."""
        if not self.history.ledger().is_known(swap_id):
            self._log(f"received from {requested_by}: back to the previous generation", swap_id)
        return self._settle_or_accept(swap_id, requested_by, self._decide_rollback)

    def next_run(self) -> Run | None:
        """Return the run to start now, if there is one."""
        ledger = self.history.ledger()
        request = flip_rules.needs_run(ledger)
        return run_of(ledger, request) if request is not None and self._has_spec(request) else None

    def _has_spec(self, request: Request) -> bool:
        """Write the spec of a request if the process that took it died before; fail a request whose topics are gone."""
        if load_spec(self.settings.layout, request.generation) is not None:
            return True
        if adopt_draft(self.settings.layout, request.swapId, request.generation) is not None:
            return True
        try:
            if request.start == "resume":
                require_spec(self.settings.layout, request.generation)
            spec = resolve_spec(
                self.reader, request.target, request.start, self.settings.state_retention, request.generation
            )
        except InputError as error:
            fail_pending(self.settings, self.history, request.swapId, str(error))
            return False
        keep_spec(self.settings.layout, spec)
        return True

    def _settle_or_accept(
        self,
        swap_id: str,
        requested_by: str,
        rule: Callable[[OpenCommand], tuple[Entry, Plan | None]],
        is_again: bool = False,
        before: Ledger | None = None,
    ) -> Answer:
        has_come_again = not is_again and (before or self.history.ledger()).is_known(swap_id)
        taken = transitions.take_command(self.history, swap_id, requested_by, rule)
        if taken is not None:
            return self._answer(*taken)
        known = self._known(swap_id, has_come_again)
        # Another taker was faster, and the generation has its spec: ours is not needed.
        drop_draft(self.settings.layout, swap_id)
        return known

    def _decide_message(self, message: Message, command: OpenCommand) -> tuple[Entry, Plan | None]:
        decision, row = self._decide(message, command), command.status_row
        target = decision.target
        if decision.is_dry:
            plan = make_plan(self.settings, self.reader, command.ledger, row, decision)
            return command.settle(Event.PLANNED, plan.describe(), target, decision.start), plan
        self._log_once(_resolved(decision), command.swapId)
        if decision.kind is DecisionKind.REFRESH:
            flip.refresh(self.history, _now())
            detail = f"{target} is what was asked for last"
            return command.settle(Event.REFRESHED, detail, target, generation=row.generation), None
        if decision.kind is DecisionKind.TAKE_BACK and row.generation is not None:
            return command.ask_for(row.generation, target, "resume", "what is active stays"), None
        generation, records = self._prepare(decision, command)
        changes, given = "; ".join(decision.changes), decision.deadline_seconds
        return self._ask_for(command, generation, target, decision.start, changes, records, given), None

    def _prepare(self, decision: Decision, command: OpenCommand) -> tuple[int, int]:
        """Return the generation and how many records it has to read."""
        if decision.start != "resume":
            # Before the request is written: after a crash in between, the generation starts at the same offsets.
            spec = resolve_spec(self.reader, decision.target, decision.start, self.settings.state_retention)
            keep_draft(self.settings.layout, command.swapId, spec)
            return command.ledger.next_generation, count_to_read(spec.startOffsets, spec.readyOffsets)
        require_access(self.reader, decision.target)
        resumed = find_resumable_spec(self.settings.layout, command.ledger, command.status_row, decision.target)
        ends = find_ends(self.reader, decision.target)
        return resumed.generation, count_unread(self.settings.layout, resumed, ends)

    def _decide_rollback(self, command: OpenCommand) -> tuple[Entry, None]:
        ledger, active = command.ledger, command.status_row.generation
        generation, target = self._find_previous(ledger, command.status_row)
        if ledger.pending is not None and ledger.pending.generation == generation:
            detail = f"the way back to generation {generation} is already being taken by {ledger.pending.swapId}"
            return command.settle(Event.REFRESHED, detail, target, "resume"), None
        how = "which still lingers" if ledger.is_lingering(generation) else "by resuming its checkpoint"
        how = "which is a finished snapshot" if ledger.is_snapshot(generation) else how
        detail = f"from generation {active} back to generation {generation}, {how}"
        is_there = ledger.is_lingering(generation) or ledger.is_snapshot(generation)
        records = 0 if is_there else self._count_to_resume(generation, target, command.swapId)
        return self._ask_for(command, generation, target, "resume", detail, records), None

    def _find_previous(self, ledger: Ledger, status_row: StatusRow) -> tuple[int, Target]:
        if status_row.generation is None:
            raise InputError("no generation is active yet, so there is nothing to roll back")
        generation = flip_rules.previous_generation(ledger, status_row)
        asked = ledger.request_of(generation) if generation is not None else None
        if generation is None or asked is None:
            raise InputError(f"generation {status_row.generation} is the first one; there is none to roll back to")
        require_spec(self.settings.layout, generation)
        return generation, asked.target

    def _count_to_resume(self, generation: int, target: Target, swap_id: str) -> int:
        """Return how many records a retired generation has to read; 0 without a broker, which no rollback needs."""
        try:
            ends = find_ends(self.reader, target)
        except SwitchyardError as error:
            text = f"the records to read cannot be counted, so the deadline is that of a swap without any: {error}"
            self._log(text, swap_id, "WARNING")
            return 0
        return count_unread(self.settings.layout, require_spec(self.settings.layout, generation), ends)

    def _decide(self, message: Message, command: OpenCommand) -> Decision:
        ledger, status_row = command.ledger, command.status_row
        try:
            return decide(
                message,
                desired=flip_rules.desired(ledger, status_row),
                active=status_row.target,
                policy=self.settings.policy,
                topics=self.reader.list_topics(),
                pending_start=flip_rules.pending_start(ledger),
                is_snapshot=flip_rules.desires_snapshot(ledger, status_row),
            )
        except UnknownTopicError as error:
            # The list leaves out topics that this client may not see; asked by name, the broker says so.
            self.reader.partitions(error.topic)
            raise

    def _ask_for(
        self,
        command: OpenCommand,
        generation: int,
        target: Target,
        start: str,
        detail: str,
        records: int = 0,
        given: float | None = None,
    ) -> Entry:
        """Make a request. Its deadline is the given one, or fits the records to read."""
        seconds = allow_seconds(self.settings, command.ledger, records, target, given)
        if command.status_row.generation is not None:
            detail += describe_deadline(seconds, self.settings.ready_deadline_seconds, records, given)
        return command.ask_for(generation, target, start, detail, _now() + timedelta(seconds=seconds))

    def _answer(self, entry: Entry, plan: Plan | None = None) -> Answer:
        """Answer for an entry that was just written."""
        if entry.event is not Event.REQUESTED or entry.generation is None:
            return Answer(entry.swapId, self.history.ledger().outcomes.get(entry.swapId), plan=plan)
        # If this process dies here, the next round of the control DAG does the rest.
        adopt_draft(self.settings.layout, entry.swapId, entry.generation)
        return self._look_again(entry.swapId)

    def _look_again(self, swap_id: str) -> Answer:
        transitions.settle_due(self.history, _now())
        if transitions.flip_snapshot(self.history, _now(), self.settings.rules):
            transitions.settle_due(self.history, _now())
        ledger = self.history.ledger()
        return Answer(swap_id, ledger.outcomes.get(swap_id), ledger.find_command(swap_id))

    def _known(self, swap_id: str, has_come_again: bool) -> Answer:
        """Answer for an id that is in the history already: Kafka delivers a message again after a crash."""
        ledger = self.history.ledger()
        outcome, request = ledger.outcomes.get(swap_id), ledger.find_command(swap_id)
        if request is not None and outcome is None and request.start != "resume":
            self._has_spec(request)
        if has_come_again and not is_snapshot_id(swap_id):
            state = outcome.event if outcome else "under way"
            self._log(f"the id {swap_id} came again and is {state} already: nothing is done", swap_id)
        return Answer(swap_id, outcome, request)

    def _log_once(self, msg: str, swap_id: str) -> None:
        # A lost race leads to the same decision again.
        if self._last_logged != (swap_id, msg):
            self._log(msg, swap_id)
        self._last_logged = (swap_id, msg)

    def _log(self, msg: str, swap_id: str, level: LogLevel = "INFO") -> None:
        write_log(self.settings.layout, msg, level=level, swap_id=swap_id)


def _describe(message: Message) -> str:
    names = ("usersTopic", "accountsTopic", "joinType", "start", "deadlineSeconds")
    given = [f"{name} {shorten(str(getattr(message, name)))}" for name in names if getattr(message, name) is not None]
    return ("a dry run of " if message.dryRun else "") + (", ".join(given) or "no changes")


def _resolved(decision: Decision) -> str:
    changed = f"changed: {'; '.join(decision.changes)}" if decision.changes else "unchanged"
    return f"resolved to {decision.target}: {changed}"


def _now() -> datetime:
    return datetime.now(UTC)
