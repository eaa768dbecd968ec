"""Hold what is fixed about a generation when its request is accepted. Every attempt starts from this."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import BaseModel

from switchyard.offsets import Offsets
from switchyard.policies import Target
from switchyard.records import LEFT, Side


class GenerationSpec(BaseModel, frozen=True):
    generation: int
    usersTopic: str
    accountsTopic: str
    joinType: str
    start: str
    startOffsets: Offsets
    readyOffsets: Offsets
    """The ends of the topics at the request: a generation that has read up to there has caught up."""
    stateRetention: timedelta | None = None
    """Fixed for the generation's life: a checkpoint cannot change it, and an audit must know it."""
    requestedAt: datetime
    topicIds: dict[str, str] = {}
    """Kafka's ids of the topics: a topic that is created again under the same name has another id."""
    end: str | None = None
    """Where a snapshot of history ends, as it was asked for; None for a stream, which has no end."""

    @property
    def is_snapshot(self) -> bool:
        return self.end is not None

    def topic_of(self, side: Side) -> str:
        return self.usersTopic if side == LEFT else self.accountsTopic

    @property
    def target(self) -> Target:
        return Target(self.usersTopic, self.accountsTopic, self.joinType)
