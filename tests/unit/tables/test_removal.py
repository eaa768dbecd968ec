"""What a generation that never became active leaves behind, and who removes it, in real tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from switchyard.errors import FencedError
from switchyard.layout import BIG_TABLES, Layout, attempt_app_id
from switchyard.policies import Rules, Target
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.swap import transitions
from switchyard.swap.generations import keep_spec, load_spec, remove_checkpoint
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.reconcile import clean_up, reconcile
from switchyard.tables import store
from switchyard.tables.removal import remove_generation_rows
from switchyard.tables.writer import check_fence, claim_attempt
from tests.histories import activate, ask
from tests.specs import make_spec

NOW = datetime.now(UTC)
RULES = Rules()
TARGETS = {1: Target("users", "accounts", "left"), 2: Target("users", "accounts", "inner")}


def write(layout: Layout, generation: int) -> None:
    """Two files in each big table, a checkpoint and a spec."""
    for name in BIG_TABLES:
        for number in (1, 2):
            store.append_rows(layout, name, [{"generation": generation, **marker(name, generation, number)}])
    checkpoint = Path(layout.checkpoint(generation), "offsets")
    checkpoint.mkdir(parents=True)
    (checkpoint / "0").write_text("v1")
    keep_spec(layout, make_spec(generation, TARGETS[generation]))


def marker(name: str, generation: int, number: int) -> dict[str, str]:
    return {"topic" if name == "rejects" else "userId": f"{generation}-{number}"}


def rows(layout: Layout) -> dict[str, list[store.Row]]:
    return {name: store.read_rows(layout, name) for name in BIG_TABLES}


def generations_with_rows(layout: Layout) -> dict[str, set[int]]:
    return {name: {row["generation"] for row in there} for name, there in rows(layout).items()}


def versions(layout: Layout) -> dict[str, int]:
    return {name: DeltaTable(layout.table(name)).version() for name in (*BIG_TABLES, "swap_history", "status")}


def die(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def history(layout: Layout) -> HistoryStore:
    """Generation 1 is active and has written."""
    history = HistoryStore(layout)
    activate(history, "first", TARGETS[1], 1)
    write(layout, 1)
    return history


def abandon(history: HistoryStore, swap_id: str, generation: int, is_started: bool) -> None:
    request = ask(history, swap_id, TARGETS[generation], generation)
    if is_started:
        transitions.note(history, request.entry(Event.STARTING))
    transitions.give_up(history, swap_id, "it broke", NOW)


def last_entry(history: HistoryStore) -> tuple[str, Event, int | None, str]:
    entry = history.ledger().entries[-1]
    return entry.swapId, entry.event, entry.generation, entry.detail


def test_an_abandoned_generation_loses_its_rows_checkpoint_and_spec_and_nobody_else_does(
    layout: Layout, history: HistoryStore
) -> None:
    of_the_first = rows(layout)
    write(layout, 2)
    attempt = claim_attempt(layout, 2)
    abandon(history, "second", 2, is_started=True)
    clean_up(layout, history, 2)
    assert rows(layout) == of_the_first
    assert all(len(there) == 2 for there in of_the_first.values())
    assert [path.name for path in sorted(Path(layout.under("checkpoints")).iterdir())] == ["1", "1.json"]
    detail = "its rows (8 files) and its checkpoint are removed"
    assert last_entry(history) == ("second", Event.RETIRED, 2, detail)
    for name in BIG_TABLES:
        with pytest.raises(FencedError, match=f"attempt {attempt} of generation 2 was replaced"):
            check_fence(store.open_table(layout, name).transaction_version(attempt_app_id(2)), 2, attempt)
        assert store.open_table(layout, name).transaction_version(attempt_app_id(1)) is None


def test_cleaning_up_again_changes_nothing(layout: Layout, history: HistoryStore, settings: Settings) -> None:
    write(layout, 2)
    abandon(history, "second", 2, is_started=True)
    reconcile(settings, history)
    before, ledger = versions(layout), history.ledger()
    reconcile(settings, history)
    assert versions(layout) == before
    clean_up(layout, history, 2)
    assert history.ledger() == ledger
    assert generations_with_rows(layout) == {key: {1} for key in BIG_TABLES}
    assert remove_generation_rows(layout, 2) == 0


def test_who_dies_after_the_rows_leaves_the_checkpoint_to_the_next(
    layout: Layout, history: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(layout, 2)
    abandon(history, "second", 2, is_started=True)
    with monkeypatch.context() as patch:
        patch.setattr("switchyard.swap.reconcile.remove_checkpoint", die)
        with pytest.raises(KeyboardInterrupt):
            clean_up(layout, history, 2)
    assert load_spec(layout, 2) is not None
    assert not history.ledger().is_retired(2)
    clean_up(layout, history, 2)
    assert load_spec(layout, 2) is None
    assert last_entry(history)[:3] == ("second", Event.RETIRED, 2)
    assert generations_with_rows(layout) == {key: {1} for key in BIG_TABLES}


def test_a_resume_that_failed_keeps_rows_checkpoint_and_spec(layout: Layout, history: HistoryStore) -> None:
    activate(history, "second", TARGETS[2], 2)
    write(layout, 2)
    kept = rows(layout)
    later = datetime.now(UTC)
    assert transitions.try_retire(history, 1, "", later, Rules(linger=timedelta()), lambda generation: later)
    abandon(history, "again", 1, is_started=True)
    clean_up(layout, history, 1)
    assert rows(layout) == kept
    assert load_spec(layout, 1) is not None
    assert Path(layout.checkpoint(1), "offsets", "0").read_text() == "v1"
    assert last_entry(history) == ("again", Event.RETIRED, 1, "it keeps its rows and its checkpoint")


def test_a_generation_without_a_driver_loses_its_spec_and_touches_no_big_table(
    layout: Layout, history: HistoryStore
) -> None:
    keep_spec(layout, spec := load_second_spec(layout))
    abandon(history, "second", 2, is_started=False)
    before = versions(layout)
    clean_up(layout, history, 2)
    after = versions(layout)
    assert {name for name in after if after[name] != before[name]} == {"swap_history"}
    assert load_spec(layout, spec.generation) is None
    assert last_entry(history) == ("second", Event.RETIRED, 2, "it had no driver yet")


def load_second_spec(layout: Layout) -> GenerationSpec:
    first = load_spec(layout, 1)
    assert first is not None
    return first.model_copy(update={"generation": 2, "joinType": "inner"})


def test_before_any_table_exists_there_is_nothing_to_remove(layout: Layout) -> None:
    assert remove_generation_rows(layout, 1) == 0
    remove_checkpoint(layout, 1)
    assert not any(store.has_table(layout, name) for name in BIG_TABLES)
