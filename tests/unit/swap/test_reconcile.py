"""Kept generations in real tables: how they are shown, and how a person ends one."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from switchyard.cli.main import main
from switchyard.layout import Layout
from switchyard.swap.history import Event
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.reconcile import retire_kept
from tests.kept_generations import attempts, lingering


@pytest.mark.parametrize("seconds", [900, 0])
def test_status_shows_when_each_will_retire(
    kept: HistoryStore, seconds: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_RETIRE_AFTER_SECONDS", str(seconds))
    main(["status", "--json"])
    status = json.loads(capsys.readouterr().out)
    assert status["lingering"] == [1, 2, 3]
    ends = [(entry.at + timedelta(seconds=seconds)).isoformat(timespec="seconds") for entry in kept.ledger().lingering]
    assert status["retires"] == [
        {"generation": generation, "at": end if seconds else None}
        for generation, end in zip((1, 2, 3), ends, strict=True)
    ]


def test_one_that_is_kept_is_retired_by_hand_and_fenced_out(
    kept_root: Layout, kept: HistoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retire", "2"]) == 0
    assert capsys.readouterr().out == "generation 2 has retired; its driver ends within seconds\n"
    last = kept.ledger().entries[-1]
    assert (last.swapId, last.event, last.generation) == ("s-2", Event.RETIRED, 2)
    assert last.detail.startswith("asked for by cli:")
    assert (lingering(kept), attempts(kept_root, 2), attempts(kept_root, 1)) == ([1, 3], {1}, {None})
    assert main(["retire", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"generation": 3, "retired": True}


@pytest.mark.parametrize(
    ("generation", "reason"),
    [
        (1, "generation 1 has retired already"),
        (4, "generation 4 is active"),
        (5, "generation 5 is being built or taken back by s-5"),
        (6, "there is no generation 6"),
    ],
)
def test_what_cannot_be_retired_is_refused_with_a_sentence(
    kept: HistoryStore, generation: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retire", "1"]) == 0
    before = kept.ledger()
    assert main(["retire", str(generation)]) == 2
    assert reason in capsys.readouterr().err
    assert kept.ledger() == before


def test_what_is_kept_retires_and_nothing_else_does(kept_root: Layout, kept: HistoryStore) -> None:
    assert retire_kept(kept_root, kept) == [1, 2, 3]
    assert lingering(kept) == []
    assert kept.status_row().generation == 4
    assert kept.ledger().pending is not None
    assert {generation: attempts(kept_root, generation) for generation in (1, 3)} == {1: {1}, 3: {1}}
