"""Resolve the spec of each generation, and keep it as a file beside its checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.swap.decision import check_target
from switchyard.swap.flip_rules import find_resumable
from switchyard.swap.history import Ledger, StatusRow
from switchyard.tables.folders import Folder

if TYPE_CHECKING:
    # Who only reads a spec has no use for a Kafka client.
    from switchyard.kafka.topics import TopicReader


def resolve_spec(
    reader: TopicReader, target: Target, start: str, retention: timedelta | None = None, generation: int = 0
) -> GenerationSpec:
    """Ask the broker at which offsets the topics start and end now."""
    topics = (target.usersTopic, target.accountsTopic)
    require_access(reader, target)
    bounds = {topic: reader.bounds(topic) for topic in topics}
    ends = {topic: bounds[topic][1] for topic in topics}
    if start == "latest":
        starts = ends
    elif start == "earliest":
        starts = {topic: bounds[topic][0] for topic in topics}
    else:
        starts = {topic: reader.offsets_at(topic, start) for topic in topics}
    return GenerationSpec(
        **asdict(target),
        generation=generation,
        start=start,
        startOffsets=starts,
        readyOffsets=ends,
        stateRetention=retention,
        requestedAt=datetime.now(UTC),
        topicIds={topic: reader.topic_id(topic) for topic in topics},
    )


def require_access(reader: TopicReader, target: Target) -> None:
    for topic in (target.usersTopic, target.accountsTopic):
        reader.require_readable(topic)


def keep_spec(layout: Layout, spec: GenerationSpec) -> GenerationSpec:
    """Write the spec of a generation, unless it has one: the first one fixes where it starts."""
    if (there := load_spec(layout, spec.generation)) is not None:
        return there
    _folder(layout).write(layout.spec_name(spec.generation), spec.model_dump_json().encode())
    return spec


def keep_draft(layout: Layout, swap_id: str, spec: GenerationSpec) -> None:
    """Write the spec of a request that is not written yet, and so has no generation."""
    _folder(layout).write(_draft_name(swap_id), spec.model_dump_json().encode())


def adopt_draft(layout: Layout, swap_id: str, generation: int) -> GenerationSpec | None:
    """Make the draft of a request the spec of its generation; return None if there is no draft."""
    folder = _folder(layout)
    with contextlib.suppress(FileNotFoundError):
        draft = GenerationSpec.model_validate_json(folder.read_bytes(_draft_name(swap_id)))
        kept = keep_spec(layout, draft.model_copy(update={"generation": generation}))
        folder.delete_file(_draft_name(swap_id))
        return kept
    return None


def drop_draft(layout: Layout, swap_id: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        _folder(layout).delete_file(_draft_name(swap_id))


def _draft_name(swap_id: str) -> str:
    return f"draft-{hashlib.sha256(swap_id.encode()).hexdigest()[:32]}.json"


def load_spec(layout: Layout, generation: int) -> GenerationSpec | None:
    with contextlib.suppress(FileNotFoundError):
        return GenerationSpec.model_validate_json(_folder(layout).read_bytes(layout.spec_name(generation)))
    return None


def spec_for_driver(
    settings: Settings, reader: TopicReader, generation: int, target: Target, start: str
) -> GenerationSpec:
    """Return the spec that was written with the request; write one for a driver that a person has started."""
    known = load_spec(settings.layout, generation)
    if known is None:
        check_target(target, settings.policy, reader.list_topics())
        spec = resolve_spec(reader, target, start, settings.state_retention, generation)
        return keep_spec(settings.layout, spec)
    if known.is_snapshot:
        raise InputError(f"generation {generation} is a finished snapshot of history; no driver can stream into it")
    if known.target != target:
        raise InputError(
            f"generation {generation} is {known.target}; it cannot become another one: ask for a new generation"
        )
    return known


def require_spec(layout: Layout, generation: int) -> GenerationSpec:
    spec = load_spec(layout, generation)
    if spec is None:
        raise InputError(f"the checkpoint of generation {generation} was removed, so it cannot be resumed")
    return spec


def find_resumable_spec(layout: Layout, ledger: Ledger, status_row: StatusRow, target: Target) -> GenerationSpec:
    """Return the spec of the generation that `resume` means."""
    generation = find_resumable(ledger, status_row, target)
    if generation is None:
        raise InputError(f"there is no earlier generation of {target} to resume; start from latest or earliest")
    return require_spec(layout, generation)


def remove_checkpoint(layout: Layout, generation: int) -> None:
    folder = _folder(layout)
    folder.delete_folder(str(generation))
    # The spec goes last: while it is there, maintenance knows that something is left to remove.
    folder.delete_file(layout.spec_name(generation))


def _folder(layout: Layout) -> Folder:
    return Folder.at(layout.under("checkpoints"))
