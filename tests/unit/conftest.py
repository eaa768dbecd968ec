"""Four generations that are kept, for the tests of every way to see them and to end them."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.layout import Layout
from switchyard.swap.history_store import HistoryStore
from switchyard.swap.log_messages import open_history
from tests.kept_generations import make_kept


@pytest.fixture
def kept_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("SWITCHYARD_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("SWITCHYARD_KEEP_GENERATIONS", "true")
    return Layout(str(tmp_path / "root"))


@pytest.fixture
def kept(kept_root: Layout) -> HistoryStore:
    """Four generations that were active one after the other, and a fifth that is being built."""
    history = open_history(kept_root)
    make_kept(history)
    return history
