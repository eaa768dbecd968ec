"""The documents of the API: what its OpenAPI description promises."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SAFE_INTEGER = 2**53 - 1


Id = Annotated[str | None, Field(max_length=200, description="Idempotency key: the same id again is the same command.")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    detail: Any = Field(description="What was wrong and what to do about it.")


class Me(BaseModel):
    name: str
    mayCommand: bool
    seesAddresses: bool


class StatusReport(BaseModel):
    """What `switchyard status --json` prints; before the first generation only these two."""

    model_config = ConfigDict(extra="allow")

    healthy: bool
    reason: str


class Column(BaseModel):
    name: str
    type: Literal["text", "number", "time"]
    holdsAddresses: bool = Field(description="Whether only viewers who see addresses may filter and sort by it.")


class Table(BaseModel):
    name: str
    columns: list[Column]


class TablePage(BaseModel):
    rows: list[dict[str, Any]]
    total: int = Field(description="How many rows match, in and beyond the window.")
    version: int = Field(description="The Delta version that was read; -1 before there is one.")
    generation: int | None


class Topics(BaseModel):
    topics: dict[str, int] = Field(description="Name → number of partitions.")


class Command(Strict):
    """What a control message may say; what is left out stays as it is."""

    usersTopic: str | None = Field(None, max_length=300)
    accountsTopic: str | None = Field(None, max_length=300)
    joinType: str | None = Field(None, max_length=100)
    start: str | None = Field(None, max_length=100)
    deadlineSeconds: float | None = Field(
        None,
        strict=True,
        description="The swap fails if it has not flipped after so many seconds. Left out: what its records need.",
    )
    id: Id = None

    def fields(self) -> dict[str, Any]:
        return self.model_dump(exclude={"id"}, exclude_none=True)


class Undo(Strict):
    id: Id = None


class Sent(BaseModel):
    swapId: str


class Swap(BaseModel):
    swapId: str
    events: list[dict[str, Any]]
    outcome: str | None = Field(description="None while it is under way or not taken yet.")
    detail: str


class NewRows(Strict):
    rows: list[dict[str, Any]] = Field(description="New rows of a small table, oldest first.")


class NewTableRows(NewRows):
    """New rows of a big table, or rows written again beside new ones."""

    name: str
    generation: int
    version: int
    more: int = Field(description="How many rows there are, if there are too many to send them.")


class Versions(Strict):
    """The generation and the Delta versions to read the big tables at."""

    generation: int | None
    versions: dict[str, int]


class Reset(BaseModel):
    """The log no longer reaches back to the position: read everything again."""


EVENTS: dict[str, type[BaseModel]] = {
    "status": StatusReport,
    "statusRow": NewRows,
    "history": NewRows,
    "logs": NewRows,
    "control": NewRows,
    "progress": NewRows,
    "tables": Versions,
    "rows": NewTableRows,
    "reset": Reset,
    "trouble": Problem,
}
"""The one document that each event of the stream of changes carries."""


def dump(document: Any, ensure_ascii: bool = False) -> str:
    return json.dumps(_plain(document), ensure_ascii=ensure_ascii)


def _plain(value: Any) -> Any:
    """Turn moments into ISO text, and integers that a browser cannot hold into text."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, int) and abs(value) > SAFE_INTEGER:
        return str(value)
    return value
