"""What a swap would do, without doing it: topics, partitions, records to read, an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from switchyard.control import Decision, Kind
from switchyard.generations import find_resumable_spec, resolve_spec
from switchyard.kafka.topics import TopicReader
from switchyard.offsets import count_records, from_json
from switchyard.protocol import Book
from switchyard.settings import Settings
from switchyard.swaps import Event, Ledger
from switchyard.tables.progress import best_rate, newest_progress

# Without a swap or a batch to go by yet: what was measured on two cores.
USUAL_START_SECONDS = 25.0
USUAL_RECORDS_PER_SECOND = 20_000.0


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
    warnings: list[str]

    def describe(self) -> str:
        if self.would == Kind.REFRESH:
            return "nothing would change: it would be refreshed"
        if self.would == Kind.TAKE_BACK:
            return "what is active would stay, and the swap that is under way would be superseded"
        topics = (
            f"{self.usersTopic} ({self.usersPartitions} partitions) and "
            f"{self.accountsTopic} ({self.accountsPartitions} partitions), {self.joinType} join"
        )
        records = f"{self.records} records to read, about {self.estimateSeconds:.0f} s to the flip"
        return "; ".join(
            [f"would start generation {self.generation}: {topics}, from {self.start}; {records}", *self.warnings]
        )


def make_plan(settings: Settings, reader: TopicReader, book: Book, decision: Decision) -> Plan:
    ledger, standing, target = book.ledger(), book.standing(), decision.target
    is_swap = decision.kind is Kind.SWAP
    generation = ledger.next_generation
    spec = resolve_spec(reader, target, "latest" if decision.start == "resume" else decision.start)
    starts = spec.startOffsets
    if decision.start == "resume" and is_swap:
        resumed = find_resumable_spec(settings.layout, ledger, standing, target)
        generation = resumed.generation
        progress = newest_progress(settings.layout, generation)
        starts = from_json(progress.endOffsets) if progress and progress.endOffsets else resumed.startOffsets
    records = max(0, count_records(starts, spec.readyOffsets)) if is_swap else 0
    seconds = estimate_seconds(settings, ledger, records) if is_swap else 0.0
    warnings = []
    if is_swap and standing.generation is not None and seconds > settings.ready_deadline_seconds:
        warnings.append(
            f"that is longer than the deadline of {settings.ready_deadline_seconds:g} s: "
            "raise SWITCHYARD_READY_DEADLINE_SECONDS or start later"
        )
    return Plan(
        would=str(decision.kind),
        usersTopic=target.usersTopic,
        accountsTopic=target.accountsTopic,
        joinType=target.joinType,
        start=decision.start,
        changes=list(decision.changes),
        generation=generation if is_swap else standing.generation,
        usersPartitions=len(spec.readyOffsets[target.usersTopic]),
        accountsPartitions=len(spec.readyOffsets[target.accountsTopic]),
        records=records,
        estimateSeconds=round(seconds, 1),
        warnings=warnings,
    )


def estimate_seconds(settings: Settings, ledger: Ledger, records: int) -> float:
    """Start-up as the last swaps took it, and reading as fast as the best batches so far."""
    took = [
        (outcome.at - request.at).total_seconds()
        for request in ledger.requests[-20:]
        if (outcome := ledger.outcomes.get(request.swapId))
        and outcome.event is Event.APPLIED
        and not request.is_undo
        and not ledger.is_snapshot(request.generation)
    ]
    rate = best_rate(settings.layout, without=ledger.builds) or USUAL_RECORDS_PER_SECOND
    return (median(took) if took else USUAL_START_SECONDS) + records / max(rate, 1.0)
