"""Asking for a generation, and closing it when its driver has ended. Used by the DAG, the CLI and the driver alike."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.fs as pafs
from pydantic import BaseModel

from switchyard.errors import InputError
from switchyard.kafka.topics import Offsets, TopicReader, check_topic_name, parse_moment
from switchyard.layout import JOIN_TYPES, Layout
from switchyard.settings import Settings
from switchyard.tables import history
from switchyard.tables.history import Event, Swap
from switchyard.tables.logs import tell
from switchyard.tables.status import read_status

NAMED_STARTS = ("latest", "earliest", "resume")


class GenerationSpec(BaseModel, frozen=True):
    """All that a driver must know, fixed when the generation was asked for: every attempt starts alike."""

    generation: int
    usersTopic: str
    accountsTopic: str
    joinType: str
    start: str
    startOffsets: Offsets
    readyOffsets: Offsets
    """The end of the topics when it was asked for: a generation that got there has caught up."""
    stateRetention: timedelta | None = None
    """Fixed for the generation's life: a checkpoint cannot change it, and an audit must know it."""
    requestedAt: datetime


def request_generation(
    settings: Settings,
    *,
    users_topic: str,
    accounts_topic: str,
    join_type: str,
    start: str,
    swap_id: str,
    requested_by: str,
    kafka: dict[str, str],
) -> int:
    """Accepts a generation, with its number and its start position on disk, or records why not and raises."""
    layout = settings.layout
    swap_id = history.open_swap_id(history.read_history(layout), swap_id)
    swap = Swap(swap_id, None, users_topic, accounts_topic, join_type, start, requested_by)
    try:
        check_request(settings, swap)
        spec = resolve_spec(kafka, swap, settings.state_retention)
        spec = spec.model_copy(update={"generation": _number_for(layout, swap)})
    except InputError as error:
        history.record(layout, swap, Event.REJECTED, str(error))
        tell(layout, f"rejected: {error}", level="WARNING", swap_id=swap_id)
        raise
    keep_spec(layout, spec)
    tell(
        layout,
        f"generation {spec.generation} requested: {users_topic} and {accounts_topic}, {join_type} join, from {start}",
        generation=spec.generation,
        swap_id=swap_id,
    )
    return spec.generation


def check_request(settings: Settings, swap: Swap) -> None:
    """Everything about a request that can be judged without asking the broker."""
    for topic in (swap.usersTopic or "", swap.accountsTopic or ""):
        check_topic_name(topic)
        if topic == settings.control_topic:
            raise InputError(f"{topic} is the control topic and cannot be joined; name another topic")
    if swap.usersTopic == swap.accountsTopic:
        raise InputError(f"users and accounts cannot both come from the topic {swap.usersTopic}; name two topics")
    if swap.joinType not in JOIN_TYPES:
        raise InputError(f"{swap.joinType!r} is not a join type; use one of {', '.join(JOIN_TYPES)}")
    if swap.start not in NAMED_STARTS:
        parse_moment(swap.start or "")


def resolve_spec(kafka: dict[str, str], swap: Swap, retention: timedelta | None = None) -> GenerationSpec:
    """Asks the broker where the topics are read from and where they end now."""
    topics = [swap.usersTopic or "", swap.accountsTopic or ""]
    start = swap.start or ""
    with TopicReader(kafka) as reader:
        ends = {topic: reader.bounds(topic)[1] for topic in topics}
        is_end = start in ("latest", "resume")
        starts = ends if is_end else {topic: reader.resolve_start(topic, start) for topic in topics}
    return GenerationSpec(
        generation=swap.generation or 0,
        usersTopic=topics[0],
        accountsTopic=topics[1],
        joinType=swap.joinType or "",
        start=start,
        startOffsets=starts,
        readyOffsets=ends,
        stateRetention=retention,
        requestedAt=datetime.now(UTC),
    )


def _number_for(layout: Layout, swap: Swap) -> int:
    if swap.start != "resume":
        return history.allocate_generation(layout, swap, "")
    rows = history.read_history(layout)
    if any(row["swapId"] == swap.swapId and row["event"] == Event.REQUESTED for row in rows):
        return history.allocate_generation(layout, swap, "")
    for generation in sorted({row["generation"] for row in rows if row["generation"]}, reverse=True):
        before = history.find_swap(rows, generation)
        same = before is not None and (before.usersTopic, before.accountsTopic, before.joinType) == (
            swap.usersTopic,
            swap.accountsTopic,
            swap.joinType,
        )
        if same and history.is_retired(rows, generation):
            return history.allocate_generation(layout, swap, "resumes its checkpoint", generation)
    raise InputError(
        "there is no retired generation with these topics and this join type to resume; start from latest or earliest"
    )


def keep_spec(layout: Layout, spec: GenerationSpec) -> GenerationSpec:
    """Writes the spec of a generation. Where it starts is fixed by the first one; a resume moves only its goal."""
    there = load_spec(layout, spec.generation)
    if there is not None and spec.start != "resume":
        return there
    if there is not None:
        moved = {"readyOffsets": spec.readyOffsets, "requestedAt": spec.requestedAt}
        spec = there.model_copy(update=moved)
    filesystem, path = _file(layout, spec.generation)
    filesystem.create_dir(str(Path(path).parent), recursive=True)
    draft = f"{path}.{datetime.now(UTC).timestamp()}"
    with filesystem.open_output_stream(draft) as sink:
        sink.write(spec.model_dump_json().encode())
    filesystem.move(draft, path)
    return spec


def load_spec(layout: Layout, generation: int) -> GenerationSpec | None:
    filesystem, path = _file(layout, generation)
    with contextlib.suppress(FileNotFoundError), filesystem.open_input_stream(path) as source:
        return GenerationSpec.model_validate_json(source.read())
    return None


def _file(layout: Layout, generation: int) -> tuple[pafs.FileSystem, str]:
    uri = layout.spec(generation)
    return (pafs.LocalFileSystem(), uri) if layout.is_local else pafs.FileSystem.from_uri(uri)


def spec_for_driver(
    settings: Settings,
    kafka: dict[str, str],
    *,
    generation: int,
    users_topic: str,
    accounts_topic: str,
    join_type: str,
    start: str,
) -> GenerationSpec:
    """The spec that was fixed at the request; a driver started by hand without one fixes it now."""
    known = load_spec(settings.layout, generation)
    if known is not None:
        if (known.usersTopic, known.accountsTopic, known.joinType) != (
            users_topic,
            accounts_topic,
            join_type,
        ):
            raise InputError(
                f"generation {generation} is {known.usersTopic} and {known.accountsTopic}, {known.joinType}; "
                "it cannot become another one: ask for a new generation"
            )
        return known
    swap = Swap(f"by-hand-{generation}", generation, users_topic, accounts_topic, join_type, start, "hand")
    check_request(settings, swap)
    return keep_spec(settings.layout, resolve_spec(kafka, swap, settings.state_retention))


def close_request(settings: Settings, swap_id: str, reason: str) -> str:
    """Settles a request that ended before it became a generation, unless it has its outcome already."""
    layout = settings.layout
    rows = [row for row in history.read_history(layout) if history.first_swap_id(row["swapId"]) == swap_id]
    if rows and rows[-1]["event"] in history.SETTLING:
        return f"the request was {rows[-1]['event']}: {rows[-1]['detail']}"
    swap = history.swap_of(rows[-1]) if rows else Swap(swap_id, None, None, None, None, None, "")
    history.record(layout, swap, Event.FAILED, reason)
    tell(layout, f"the request failed: {reason}", level="ERROR", generation=swap.generation, swap_id=swap.swapId)
    return f"the request failed: {reason}"


def close_generation(settings: Settings, generation: int, *, failed: bool, reason: str) -> str:
    """Settles a generation whose stream task has ended, and says what was found."""
    layout = settings.layout
    rows = history.read_history(layout)
    swap = history.find_swap(rows, generation)
    if swap is None:
        return f"generation {generation} was never requested"
    if history.is_retired(rows, generation):
        return f"generation {generation} has retired"
    status = read_status(layout)
    is_active = status is not None and status.generation == generation
    if not failed:
        return f"generation {generation} is {'active' if is_active else 'not active'}; another driver may run it"
    verdict = f"the driver of generation {generation} failed: {reason}"
    history.record(layout, swap, Event.FAILED, reason)
    advice = "clear its stream task in Airflow to start it again" if is_active else "the active one is untouched"
    tell(layout, f"{verdict}; {advice}", level="ERROR", generation=generation, swap_id=swap.swapId)
    return verdict
