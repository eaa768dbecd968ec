"""The spec of a generation that starts at the latest records of no topic in particular."""

from __future__ import annotations

from datetime import UTC, datetime

from switchyard.policies import Target
from switchyard.spec import GenerationSpec


def make_spec(generation: int, target: Target) -> GenerationSpec:
    return GenerationSpec(
        generation=generation,
        usersTopic=target.usersTopic,
        accountsTopic=target.accountsTopic,
        joinType=target.joinType,
        start="latest",
        startOffsets={},
        readyOffsets={},
        requestedAt=datetime.now(UTC),
    )
