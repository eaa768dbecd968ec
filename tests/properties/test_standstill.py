"""When rows do not move, and when a swap has nobody who works for it: told in time, and never of what works."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from switchyard.health.checks import explain_standstill
from switchyard.policies import Rules
from switchyard.swap import flip_rules, transitions
from switchyard.swap.history import Entry, Event, Ledger, StatusRow
from tests.properties.memory_history import MemoryHistory
from tests.specs import TARGET

START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = st.integers(0, 400)
TIMES = SECONDS.map(lambda seconds: timedelta(seconds=seconds))
LAGS = st.none() | st.integers(0, 3)
EXECUTORS = st.none() | st.integers(0, 2)
RULES = st.builds(Rules, ready_deadline=TIMES, stuck=TIMES)


@given(LAGS, EXECUTORS, TIMES, TIMES, st.booleans())
def test_a_standstill_is_told_when_something_waits_and_nothing_moves(
    lag: int | None, executors: int | None, time: timedelta, patience: timedelta, is_awaited: bool
) -> None:
    reason = explain_standstill(lag, executors, time, patience, is_awaited)
    if time <= patience or (not lag and not is_awaited and executors != 0):
        assert reason is None
    else:
        assert reason is not None
        assert ("executors" in reason) is (executors == 0)
        assert (f"{lag} records wait" in reason) is (executors != 0 and bool(lag))
        assert ("the broker does not answer" in reason) is (executors != 0 and lag is None)
        assert explain_standstill(lag, executors, time + timedelta(seconds=1), patience, is_awaited) is not None


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


@st.composite
def pending(draw: st.DrawFn) -> tuple[Ledger, dict[int, datetime]]:
    """Generation 1 is active, 2 was asked for; its driver has perhaps started, reported, become ready."""
    requested = draw(SECONDS)
    entries = [
        Entry("first", Event.REQUESTED, 1, TARGET, at=START),
        Entry("first", Event.APPLIED, 1, TARGET, at=START),
        Entry("second", Event.REQUESTED, 2, TARGET, at=at(requested)),
    ]
    seen = {}
    if draw(st.booleans()):
        started = requested + draw(SECONDS)
        entries.append(Entry("second", Event.STARTING, 2, TARGET, at=at(started)))
        if draw(st.booleans()):
            seen[2] = at(started + draw(SECONDS))
    elif draw(st.booleans()):
        # A generation that is asked for again has reported in its earlier life.
        seen[2] = at(draw(st.integers(0, requested)))
    return Ledger.of(entries), seen


ACTIVE = StatusRow(generation=1, target=TARGET, lastApplied=START, epoch=1, flipped=1)


def last_sign(ledger: Ledger, seen: dict[int, datetime]) -> datetime:
    return max([entry.at for entry in ledger.entries if entry.swapId == "second"] + list(seen.values()))


@given(pending(), RULES, SECONDS)
def test_a_swap_is_stuck_when_its_driver_was_not_heard_of_for_long_enough(
    found: tuple[Ledger, dict[int, datetime]], rules: Rules, seconds: int
) -> None:
    ledger, seen = found
    now = last_sign(ledger, seen) + timedelta(seconds=seconds)
    stuck = flip_rules.find_stuck(ledger, ACTIVE, now, rules, seen.get)
    if timedelta(seconds=seconds) <= rules.stuck:
        assert stuck is None
    if timedelta(seconds=seconds) > max(rules.stuck, rules.ready_deadline):
        assert stuck is not None
        assert stuck.swapId == "second"
    if seen.get(2, START) <= ledger.requests[-1].at and timedelta(seconds=seconds) <= rules.ready_deadline:
        assert stuck is None, "a driver has its whole time to start"


@given(pending(), RULES)
def test_a_swap_that_is_ready_or_has_nothing_to_fall_back_to_is_never_stuck(
    found: tuple[Ledger, dict[int, datetime]], rules: Rules
) -> None:
    ledger, seen = found
    late = last_sign(ledger, seen) + timedelta(days=1)
    assert flip_rules.find_stuck(ledger, StatusRow(), late, rules, seen.get) is None
    there = StatusRow(generation=2, target=TARGET, lastApplied=START, epoch=2, flipped=2)
    assert flip_rules.find_stuck(ledger, there, late, rules, seen.get) is None
    ready = Ledger.of([*ledger.entries, Entry("second", Event.READY, 2, TARGET, at=late)])
    assert flip_rules.find_stuck(ready, ACTIVE, late + timedelta(days=1), rules, seen.get) is None
    asked_again = Ledger.of([*ledger.entries, Entry("third", Event.REQUESTED, 1, TARGET, at=late)])
    assert flip_rules.find_stuck(asked_again, ACTIVE, late + timedelta(days=1), rules, seen.get) is None


@given(pending(), RULES)
def test_a_stuck_swap_fails_once_and_what_is_active_stays(
    found: tuple[Ledger, dict[int, datetime]], rules: Rules
) -> None:
    ledger, seen = found
    now = last_sign(ledger, seen) + timedelta(days=1)
    history = MemoryHistory(lambda: now)
    history.kept, history.row = ledger, ACTIVE
    stuck = flip_rules.find_stuck(history.ledger(), history.status_row(), now, rules, seen.get)
    assert stuck is not None
    outcome = transitions.give_up(history, stuck.swapId, "no progress", now)
    assert outcome is not None
    assert (outcome.event, outcome.detail) == (Event.FAILED, "no progress")
    assert history.status_row().generation == 1
    assert flip_rules.find_stuck(history.ledger(), history.status_row(), now, rules, seen.get) is None
