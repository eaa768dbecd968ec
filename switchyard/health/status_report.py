"""Compose what `status` shows: the status row, and whether the active generation is alive and keeps up."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from switchyard.health.checks import explain_standstill
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap.fan_out import show_fan_out, warn_of_growth
from switchyard.swap.generations import load_spec
from switchyard.swap.history import Ledger
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.retirement_rules import linger_end
from switchyard.tables.progress import Progress, newest_with_rate
from switchyard.tables.status import Status, read_status


def describe_status(settings: Settings) -> dict[str, Any]:
    layout = settings.layout
    status = read_status(layout)
    if status is None:
        return compose_status(settings, None, None, 0.0, Ledger())
    progress, rate = newest_with_rate(layout, status.generation)
    return compose_status(settings, status, progress, rate, HistoryStore(layout).ledger())


def compose_status(
    settings: Settings, status: Status | None, progress: Progress | None, rate: float, ledger: Ledger
) -> dict[str, Any]:
    if status is None:
        return {"healthy": False, "reason": "no generation is active yet"}
    age = None if progress is None else (datetime.now(UTC) - progress.at).total_seconds()
    snapshot = describe_snapshot(settings, status.generation) if ledger.is_snapshot(status.generation) else None
    reason = None if snapshot else judge_heartbeat(age, settings.stale_seconds) or judge_progress(settings, progress)
    growth = warn_of_growth(progress.rowsPerEvent, progress.recentRowsPerEvent) if progress else None
    return asdict(status) | {
        "lag": progress.lag if progress else None,
        "rowsPerSecond": 0.0 if snapshot else rate,
        "rowsPerEvent": show_fan_out(progress),
        "heartbeatAgeSeconds": None if age is None else round(age, 3),
        "attempt": progress.attempt if progress else None,
        "batchId": progress.batchId if progress else None,
        "versions": progress.versions() if progress else None,
        "lingering": [entry.generation for entry in ledger.lingering],
        "retires": describe_retirement(settings, ledger),
        "swapping": describe_pending(ledger),
        "backfilling": [snapshot.generation for snapshot in ledger.snapshots.values() if ledger.is_open(snapshot)],
        "snapshot": snapshot,
        "healthy": reason is None,
        "reason": reason or ("it is a finished snapshot" if snapshot else "the heartbeat is fresh"),
        "warnings": [growth] if growth else [],
    }


def word_status(status: dict[str, Any]) -> dict[str, Any]:
    """Word the status for people: both topics on one line, and a sentence instead of a list or an object."""
    if "generation" not in status:
        return status
    first = {"generation": status["generation"], "topics": [status["usersTopic"], status["accountsTopic"]]}
    rest = {name: value for name, value in status.items() if name not in (*first, "usersTopic", "accountsTopic")}
    worded = {
        "lingering": _name_generations(status["lingering"]),
        "retires": _word_retirement(status["retires"]),
        "swapping": status["swapping"] and _word_pending(status["swapping"]),
        "backfilling": _name_generations(status["backfilling"]),
        "snapshot": status["snapshot"] and _word_snapshot(status["snapshot"]),
    }
    return first | rest | worded


def _name_generations(numbers: list[int]) -> str | None:
    return f"generation{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}" if numbers else None


def _word_retirement(ends: list[dict[str, Any]]) -> str | None:
    said = [f"generation {end['generation']} {'at ' + end['at'] if end['at'] else 'by hand'}" for end in ends]
    return ", ".join(said) or None


def _word_pending(swap: dict[str, Any]) -> str:
    until = f", until {swap['deadline']:%Y-%m-%d %H:%M:%S}" if swap["deadline"] else ""
    target = Target(swap["usersTopic"], swap["accountsTopic"], swap["joinType"])
    return f"to generation {swap['generation']}, {target}: {swap['event']}{until} ({swap['swapId']})"


def _word_snapshot(snapshot: dict[str, Any]) -> str:
    return f"from {snapshot['from']} to {snapshot['to']}" if snapshot["from"] else "of a range that nobody has kept"


def describe_snapshot(settings: Settings, generation: int) -> dict[str, Any]:
    spec = load_spec(settings.layout, generation)
    if spec is None:
        return {"from": None, "to": None, "endOffsets": None}
    return {"from": spec.start, "to": spec.end, "endOffsets": spec.readyOffsets}


def describe_retirement(settings: Settings, ledger: Ledger) -> list[dict[str, Any]]:
    """Return when each lingering generation retires; None for one that is kept until a person retires it."""
    found = []
    for entry in ledger.lingering:
        end = None if entry.generation is None else linger_end(ledger, entry.generation, settings.rules)
        found.append({"generation": entry.generation, "at": end and end.isoformat(timespec="seconds")})
    return found


def describe_pending(ledger: Ledger) -> dict[str, Any] | None:
    request = ledger.pending
    if request is None:
        return None
    seen = [entry.event for entry in ledger.entries if entry.swapId == request.swapId]
    return {
        "swapId": request.swapId,
        "generation": request.generation,
        **asdict(request.target),
        "event": str(seen[-1]),
        "deadline": request.deadline,
    }


def judge_heartbeat(age_seconds: float | None, stale_seconds: float) -> str | None:
    """Say why the reports of the active generation are not healthy; None if they are."""
    if age_seconds is None:
        return "the active generation has never reported progress"
    if age_seconds > stale_seconds:
        return f"the last heartbeat is {age_seconds:.0f} s old: its driver is dead or hung; see the Airflow run"
    return None


def judge_progress(settings: Settings, progress: Progress | None) -> str | None:
    """Say why a driver that reports is not healthy: its rows do not move. None if they do."""
    if progress is None or progress.movedAt is None:
        return None
    still = progress.at - progress.movedAt
    return explain_standstill(progress.lag, progress.executors, still, settings.limits.standstill)
