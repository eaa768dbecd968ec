"""The settings, and the specs of generations: a test names what it is about, the rest has a default."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from switchyard.layout import Layout
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec

TARGET = Target("users", "accounts", "left")


def make_settings(root: Layout | Path, **fields: Any) -> Settings:
    return Settings(root=root.root if isinstance(root, Layout) else str(root), **fields)


def make_spec(generation: int = 1, target: Target = TARGET, **fields: Any) -> GenerationSpec:
    """A generation that starts at the latest records."""
    values = {"startOffsets": {}, "readyOffsets": {}, "requestedAt": datetime.now(UTC), **vars(target), **fields}
    return GenerationSpec(**{"generation": generation, "start": "latest", **values})
