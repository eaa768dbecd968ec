"""Taking a command: settled at once, or accepted as a request. The one way in, from the topic, Airflow and the CLI.

Whoever calls may crash at any line and call again with the same swap id: what is written once stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from switchyard.errors import InputError, LostRaceError, SwitchyardError
from switchyard.kafka.topics import TopicReader
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.swap import control, flip_rules, transitions
from switchyard.swap.control import Decision, DecisionKind, Message, UnknownTopicError
from switchyard.swap.generations import (
    adopt_draft,
    find_resumable_spec,
    keep_draft,
    keep_spec,
    load_spec,
    require_access,
    require_spec,
    resolve_spec,
)
from switchyard.swap.history import BOOT_ID, Entry, Event, Ledger, Request, StatusRow, first_swap_id, next_swap_id
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
from switchyard.tables.logs import Level, tell
from switchyard.wording import shorten

MOST_LOOKS = 50


@dataclass(frozen=True)
class Answer:
    """What became of a command: an outcome, or a request whose outcome is still open."""

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
    """Where commands are taken: the settings, the history, and the broker to ask about topics."""

    settings: Settings
    reader: TopicReader
    history: HistoryStore = field(init=False)

    def __post_init__(self) -> None:
        self.history = open_history(self.settings.layout)

    def take_value(self, value: bytes | None, swap_id: str, requested_by: str) -> Answer:
        """Takes the bytes of a control message. Its own id, if it has one, is the id of the swap."""
        try:
            own_id = control.read_id(value)
            self._check_place(own_id, swap_id)
            swap_id = own_id or swap_id
            message = control.parse_message(value)
        except InputError as error:
            return self._settled(Entry(swap_id, Event.REJECTED, requestedBy=requested_by, detail=str(error)))
        return self.take(message, swap_id, requested_by)

    def _check_place(self, given: str | None, swap_id: str) -> None:
        """An id must not look like that of a message without one: that message would be taken for this one."""
        place = rf"{re.escape(self.settings.control_topic)}-\d+-\d+(-\d+)?"
        if given is not None and given != swap_id and re.fullmatch(place, given):
            raise InputError(f"the id {given} is that of another message; choose one of your own")

    def take(self, message: Message, swap_id: str, requested_by: str) -> Answer:
        if self.history.ledger().is_known(swap_id):
            return self._known(swap_id)
        self._tell(f"received from {requested_by}: {_describe(message)}", swap_id)
        for warning in message.warnings:
            self._tell(warning, swap_id, "WARNING")
        return self._guarded(swap_id, requested_by, lambda: self._take_once(message, swap_id, requested_by))

    def boot(self) -> Answer | None:
        """With nothing active and nothing asked for, the defaults are asked for. None when there is no need.

        Refused for the same reason again, it is not written again: this is tried each minute.
        """
        ledger, status_row = self.history.ledger(), self.history.status_row()
        if status_row.generation is not None or ledger.open_requests:
            return None
        swap_id = next_swap_id(ledger, BOOT_ID)
        try:
            return self._take_once(Message(), swap_id, "switchyard")
        except transitions.Retry:
            return None
        except InputError as error:
            last = [entry for entry in ledger.entries if first_swap_id(entry.swapId) == BOOT_ID]
            if last and last[-1].detail == str(error):
                return Answer(last[-1].swapId, last[-1])
            entry = Entry(swap_id, Event.REJECTED, requestedBy="switchyard", detail=str(error))
            return self._settled(entry)

    def roll_back(self, swap_id: str, requested_by: str) -> Answer:
        """Asks for the previous generation: at once if it still lingers, else by resuming its checkpoint."""
        if self.history.ledger().is_known(swap_id):
            return self._known(swap_id)
        self._tell(f"received from {requested_by}: back to the previous generation", swap_id)
        return self._guarded(swap_id, requested_by, lambda: self._roll_back_once(swap_id, requested_by))

    def next_run(self) -> Run | None:
        """The run to start now, with its start position on disk: who accepted the request may have died before."""
        ledger = self.history.ledger()
        request = flip_rules.needs_run(ledger)
        return run_of(ledger, request) if request is not None and self._has_spec(request) else None

    def _has_spec(self, request: Request) -> bool:
        """Writes the spec of a request if it is missing; a request whose topics have gone has failed."""
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

    def _guarded(self, swap_id: str, requested_by: str, take: Callable[[], Answer]) -> Answer:
        """Looks again while others change what the decision is based on; a refusal is an outcome."""
        for _ in range(MOST_LOOKS):
            try:
                return take()
            except InputError as error:
                return self._settled(Entry(swap_id, Event.REJECTED, requestedBy=requested_by, detail=str(error)))
            except transitions.Retry:
                continue
        raise LostRaceError("others ask for swaps faster than this one can be decided; try again")

    def _take_once(self, message: Message, swap_id: str, requested_by: str) -> Answer:
        topics = self.reader.list_topics()
        decision = self._decide(message, self.history.ledger(), self.history.status_row(), topics)
        if not decision.is_dry:
            self._tell(_resolved(decision), swap_id)
        if decision.is_dry:
            return self._planned(decision, swap_id, requested_by)
        if decision.kind is DecisionKind.REFRESH:
            return self._refreshed(decision, swap_id, requested_by)
        spec, generation, records = self._prepare(decision)

        def choose(ledger: Ledger, status_row: StatusRow) -> tuple[int, Target, str]:
            if self._decide(message, ledger, status_row, topics) != decision:
                raise transitions.Retry
            if decision.kind is DecisionKind.TAKE_BACK and status_row.generation is not None:
                return status_row.generation, decision.target, "resume"
            if generation is not None:
                if ledger.is_removed(generation):
                    raise transitions.Retry
                return generation, decision.target, decision.start
            return ledger.next_generation, decision.target, decision.start

        is_swap = decision.kind is DecisionKind.SWAP
        detail = "; ".join(decision.changes) if is_swap else "what is active stays"
        if spec is not None and is_swap:
            keep_draft(self.settings.layout, swap_id, spec)
        given = decision.deadline_seconds
        request = self._request(
            swap_id, choose, requested_by, detail, records, decision.target, given, has_deadline=is_swap
        )
        if spec is not None and is_swap:
            adopt_draft(self.settings.layout, swap_id, request.generation)
        return self._accepted(request)

    def _prepare(self, decision: Decision) -> tuple[GenerationSpec | None, int | None, int]:
        """The start offsets, fixed before the request is written, or the generation to resume; and how much to read."""
        if decision.kind is DecisionKind.TAKE_BACK:
            return None, None, 0
        if decision.start != "resume":
            spec = resolve_spec(self.reader, decision.target, decision.start, self.settings.state_retention)
            return spec, None, count_to_read(spec.startOffsets, spec.readyOffsets)
        require_access(self.reader, decision.target)
        ledger, status_row = self.history.ledger(), self.history.status_row()
        resumed = find_resumable_spec(self.settings.layout, ledger, status_row, decision.target)
        ends = find_ends(self.reader, decision.target)
        return None, resumed.generation, count_unread(self.settings.layout, resumed, ends)

    def _roll_back_once(self, swap_id: str, requested_by: str) -> Answer:
        ledger, status_row = self.history.ledger(), self.history.status_row()
        chosen = generation, target, _ = self._find_previous(ledger, status_row)
        if ledger.pending is not None and ledger.pending.generation == generation:
            detail = f"the way back to generation {generation} is already being taken by {ledger.pending.swapId}"
            return self._settled(Entry(swap_id, Event.REFRESHED, None, target, "resume", requested_by, detail))
        how = "which still lingers" if ledger.is_lingering(generation) else "by resuming its checkpoint"
        how = "which is a finished snapshot" if ledger.is_snapshot(generation) else how
        detail = f"from generation {status_row.generation} back to generation {generation}, {how}"

        def choose(ledger: Ledger, status_row: StatusRow) -> tuple[int, Target, str]:
            if self._find_previous(ledger, status_row) != chosen:
                raise transitions.Retry
            return chosen

        is_there = ledger.is_lingering(generation) or ledger.is_snapshot(generation)
        records = 0 if is_there else self._count_to_resume(generation, target, swap_id)
        return self._accepted(self._request(swap_id, choose, requested_by, detail, records, target))

    def _find_previous(self, ledger: Ledger, status_row: StatusRow) -> tuple[int, Target, str]:
        if status_row.generation is None:
            raise InputError("no generation is active yet, so there is nothing to roll back")
        generation = flip_rules.previous_generation(ledger, status_row)
        asked = ledger.request_of(generation) if generation is not None else None
        if generation is None or asked is None:
            raise InputError(f"generation {status_row.generation} is the first one; there is none to roll back to")
        require_spec(self.settings.layout, generation)
        return generation, asked.target, "resume"

    def _count_to_resume(self, generation: int, target: Target, swap_id: str) -> int:
        """How many records a retired generation has to read; 0 if the broker cannot say: a rollback needs no broker."""
        try:
            ends = find_ends(self.reader, target)
        except SwitchyardError as error:
            text = f"the records to read cannot be counted, so the deadline is that of a swap without any: {error}"
            self._tell(text, swap_id, "WARNING")
            return 0
        return count_unread(self.settings.layout, require_spec(self.settings.layout, generation), ends)

    def _decide(self, message: Message, ledger: Ledger, status_row: StatusRow, topics: dict[str, int]) -> Decision:
        try:
            return control.decide(
                message,
                desired=flip_rules.desired(ledger, status_row),
                active=status_row.target,
                policy=self.settings.policy,
                topics=topics,
                pending_start=flip_rules.pending_start(ledger),
                is_snapshot=flip_rules.desires_snapshot(ledger, status_row),
            )
        except UnknownTopicError as error:
            # The broker lists only what this client may see; asked for by name, it says which it is.
            self.reader.partitions(error.topic)
            raise

    def _request(
        self,
        swap_id: str,
        choose: Callable[[Ledger, StatusRow], tuple[int, Target, str]],
        requested_by: str,
        detail: str,
        records: int = 0,
        target: Target | None = None,
        given: float | None = None,
        has_deadline: bool = True,
    ) -> Request:
        """Writes the request with a deadline that fits the records to read, or the one that was given."""
        seconds = allow_seconds(self.settings, self.history.ledger(), records, target, given)
        if has_deadline and self.history.status_row().generation is not None:
            detail += describe_deadline(seconds, self.settings.ready_deadline_seconds, records, given)
        return transitions.request(
            self.history,
            swap_id,
            choose=choose,
            requested_by=requested_by,
            now=_now(),
            rules=self.settings.rules,
            detail=detail,
            has_deadline=has_deadline,
            within=timedelta(seconds=seconds),
        )

    def _planned(self, decision: Decision, swap_id: str, requested_by: str) -> Answer:
        plan = make_plan(self.settings, self.reader, self.history, decision)
        entry = Entry(swap_id, Event.PLANNED, None, decision.target, decision.start, requested_by, plan.describe())
        return self._settled(entry, plan)

    def _refreshed(self, decision: Decision, swap_id: str, requested_by: str) -> Answer:
        transitions.refresh(self.history, _now())
        generation = self.history.status_row().generation
        detail = f"{decision.target} is what was asked for last"
        return self._settled(Entry(swap_id, Event.REFRESHED, generation, decision.target, None, requested_by, detail))

    def _accepted(self, request: Request) -> Answer:
        transitions.settle_due(self.history, _now())
        if transitions.flip_snapshot(self.history, _now(), self.settings.rules):
            transitions.settle_due(self.history, _now())
        return Answer(request.swapId, self.history.ledger().outcomes.get(request.swapId), request)

    def _settled(self, entry: Entry, plan: Plan | None = None) -> Answer:
        if self.history.ledger().is_known(entry.swapId):
            return self._known(entry.swapId)
        transitions.note(self.history, entry)
        return Answer(entry.swapId, self.history.ledger().outcomes.get(entry.swapId), plan=plan)

    def _known(self, swap_id: str) -> Answer:
        """The same id again is the same command, however often it is delivered."""
        ledger = self.history.ledger()
        outcome, request = ledger.outcomes.get(swap_id), ledger.find(swap_id)
        if request is not None and outcome is None and request.start != "resume":
            self._has_spec(request)
        state = outcome.event if outcome else "under way"
        self._tell(f"the id {swap_id} came again and is {state} already: nothing is done", swap_id)
        return Answer(swap_id, outcome, request)

    def _tell(self, msg: str, swap_id: str, level: Level = "INFO") -> None:
        tell(self.settings.layout, msg, level=level, swap_id=swap_id)


def _describe(message: Message) -> str:
    names = ("usersTopic", "accountsTopic", "joinType", "start", "deadlineSeconds")
    given = [f"{name} {shorten(str(getattr(message, name)))}" for name in names if getattr(message, name) is not None]
    return ("a dry run of " if message.dryRun else "") + (", ".join(given) or "no changes")


def _resolved(decision: Decision) -> str:
    changed = f"changed: {'; '.join(decision.changes)}" if decision.changes else "unchanged"
    return f"resolved to {decision.target}: {changed}"


def _now() -> datetime:
    return datetime.now(UTC)
