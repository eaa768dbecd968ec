"""Plan a swap without doing it: topics, partitions, records to read, an estimate, a deadline."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median

from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.offsets import Offsets, count_records, from_json
from switchyard.policies import Target
from switchyard.records import JOIN_RULES
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.swap.control_message import MOST_DEADLINE_SECONDS
from switchyard.swap.decision import Decision, DecisionKind
from switchyard.swap.fan_out import show_fan_out, warn_of_growth
from switchyard.swap.generations import find_resumable_spec, resolve_spec
from switchyard.swap.history import Event, Ledger, StatusRow
from switchyard.tables.progress import Progress, bulk_rate, newest_progress
from switchyard.wording import describe_time

# Used until this installation has swaps and big batches to go by: measured on two cores, then rounded down.
USUAL_START_SECONDS = 50.0
CAUTIOUS_RECORDS_PER_SECOND = 5_000.0
# Half of what was measured with thousands of pairs for each record.
CAUTIOUS_PAIRS_PER_SECOND = 50_000.0
LOOKED_AT = 5
"""So many of the newest generations may have left progress; most of those that failed have none."""
READING_ALLOWANCE = 3
"""A swap may take this many times the estimate for reading its records."""


@dataclass(frozen=True)
class Plan:
    would: str
    """refresh, swap or take back"""
    usersTopic: str
    accountsTopic: str
    joinType: str
    start: str
    changes: list[str]
    generation: int | None
    usersPartitions: int
    accountsPartitions: int
    records: int
    estimateSeconds: float
    deadlineSeconds: float | None
    """From the request to the flip. None if nothing is active yet, or nothing is swapped."""
    rowsPerEvent: float | None
    """Pairs that the join makes of an event, in the newest generation that has read the same topics."""
    warnings: list[str]

    def describe(self) -> str:
        if self.would == DecisionKind.REFRESH:
            return "nothing would change: it would be refreshed"
        if self.would == DecisionKind.TAKE_BACK:
            return "what is active would stay, and the swap that is under way would be superseded"
        topics = (
            f"{self.usersTopic} ({self.usersPartitions} partitions) and "
            f"{self.accountsTopic} ({self.accountsPartitions} partitions), {self.joinType} join"
        )
        records = f"{self.records} records to read, about {self.estimateSeconds:.0f} s to the flip"
        records += ", no deadline" if self.deadlineSeconds is None else f", deadline {self.deadlineSeconds:.0f} s"
        # A join that takes only the latest pair has fewer rows than pairs.
        made = "pairs" if JOIN_RULES[self.joinType].takes_latest else "rows"
        records += "" if self.rowsPerEvent is None else f", about {self.rowsPerEvent:g} {made} per event"
        return "; ".join(
            [f"would start generation {self.generation}: {topics}, from {self.start}; {records}", *self.warnings]
        )


def make_plan(
    settings: Settings, reader: TopicReader, ledger: Ledger, status_row: StatusRow, decision: Decision
) -> Plan:
    target = decision.target
    is_swap = decision.kind is DecisionKind.SWAP
    generation = ledger.next_generation
    spec = resolve_spec(reader, target, "latest" if decision.start == "resume" else decision.start)
    records = count_to_read(spec.startOffsets, spec.readyOffsets) if is_swap else 0
    if decision.start == "resume" and is_swap:
        resumed = find_resumable_spec(settings.layout, ledger, status_row, target)
        generation = resumed.generation
        records = count_unread(settings.layout, resumed, spec.readyOffsets)
    seconds = estimate_seconds(settings, ledger, records, target) if is_swap else 0.0
    deadline = None
    if is_swap and status_row.generation is not None:
        deadline = allow_seconds(settings, ledger, records, target, decision.deadline_seconds)
    known = find_reading(settings.layout, ledger, target)
    growth = warn_of_growth(known.rowsPerEvent, known.recentRowsPerEvent) if known else None
    late = _warn_of_deadline(seconds, deadline, is_given=decision.deadline_seconds is not None)
    return Plan(
        **asdict(target),
        would=str(decision.kind),
        start=decision.start,
        changes=list(decision.changes),
        generation=generation if is_swap else status_row.generation,
        usersPartitions=len(spec.readyOffsets[target.usersTopic]),
        accountsPartitions=len(spec.readyOffsets[target.accountsTopic]),
        records=records,
        estimateSeconds=round(seconds, 1),
        deadlineSeconds=None if deadline is None else round(deadline, 1),
        rowsPerEvent=show_fan_out(known),
        warnings=[*late, *([growth] if growth else [])],
    )


def find_reading(layout: Layout, ledger: Ledger, target: Target) -> Progress | None:
    """Return the newest progress of a generation that has read the same topics, whatever its join."""
    topics = (target.usersTopic, target.accountsTopic)
    targets = {request.generation: request.target for request in ledger.requests}
    same = [number for number, read in targets.items() if (read.usersTopic, read.accountsTopic) == topics]
    newest = sorted(same, reverse=True)[:LOOKED_AT]
    return next((found for generation in newest if (found := newest_progress(layout, generation))), None)


def _warn_of_deadline(seconds: float, deadline: float | None, is_given: bool) -> list[str]:
    if deadline is None or seconds <= deadline:
        return []
    remedy = "give a longer one or none, or start later" if is_given else "raise SWITCHYARD_READY_DEADLINE_SECONDS"
    return [f"that is longer than the deadline of {deadline:g} s: {remedy}"]


def find_ends(reader: TopicReader, target: Target) -> Offsets:
    return {topic: reader.bounds(topic)[1] for topic in (target.usersTopic, target.accountsTopic)}


def count_unread(layout: Layout, spec: GenerationSpec, ends: Offsets) -> int:
    """Return how many records a generation has to read when it is resumed."""
    progress = newest_progress(layout, spec.generation)
    starts = from_json(progress.endOffsets) if progress and progress.endOffsets else spec.startOffsets
    return count_to_read(starts, ends)


def count_to_read(starts: Offsets, ends: Offsets) -> int:
    # The ends were read a moment before the start, which may lie past them.
    return max(0, count_records(starts, ends))


def allow_seconds(
    settings: Settings, ledger: Ledger, records: int, target: Target | None = None, given: float | None = None
) -> float:
    """Return how long a swap may take from its request to its flip: as given, or as fits its records."""
    if given is not None:
        return given
    return compute_deadline(settings.ready_deadline_seconds, estimate_reading(settings, ledger, records, target))


def compute_deadline(base_seconds: float, reading_seconds: float) -> float:
    return min(base_seconds + READING_ALLOWANCE * reading_seconds, MOST_DEADLINE_SECONDS)


def describe_deadline(seconds: float, base_seconds: float, records: int, given: float | None) -> str:
    """Word the deadline for a request's detail; empty if it is that of every swap."""
    if given is None and seconds - base_seconds < 1:
        return ""
    reason = f"{records:,} records to read" if given is None else "as the message asks"
    return f"; its deadline is in {describe_time(timedelta(seconds=seconds))}: {reason}"


def estimate_reading(settings: Settings, ledger: Ledger, records: int, target: Target | None = None) -> float:
    """Estimate the seconds to read and join records, from the rate of earlier big batches and the pairs they make."""
    if not records:
        return 0.0
    rate = bulk_rate(settings.layout, without=ledger.snapshots) or CAUTIOUS_RECORDS_PER_SECOND
    known = find_reading(settings.layout, ledger, target) if target else None
    pairs = records * ((known.rowsPerEvent or known.recentRowsPerEvent or 0.0) if known else 0.0)
    return max(records / max(rate, 1.0), pairs / CAUTIOUS_PAIRS_PER_SECOND)


def estimate_seconds(settings: Settings, ledger: Ledger, records: int, target: Target) -> float:
    """Estimate the seconds to the flip: those of recent swaps that had nothing to read, plus those for the records."""
    took = [
        (outcome.at - request.at).total_seconds()
        for request in ledger.requests[-20:]
        if (outcome := ledger.outcomes.get(request.swapId))
        and outcome.event is Event.APPLIED
        and request.start == "latest"
    ]
    return (median(took) if took else USUAL_START_SECONDS) + estimate_reading(settings, ledger, records, target)
