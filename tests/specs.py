"""The specs of generations: a test names what it is about, the rest has a default."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from switchyard.policies import Target
from switchyard.spec import GenerationSpec

TARGET = Target("users", "accounts", "left")


def make_spec(generation: int = 1, target: Target = TARGET, **fields: Any) -> GenerationSpec:
    """A generation that starts at the latest records."""
    values = {"startOffsets": {}, "readyOffsets": {}, "requestedAt": datetime.now(UTC), **vars(target), **fields}
    return GenerationSpec(**{"generation": generation, "start": "latest", **values})
