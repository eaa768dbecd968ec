"""The parts of an audit that need no Spark: are all records stored, is every control message settled?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from switchyard.gaps import Gap, find_gaps, find_unsettled, take_first
from switchyard.generations import GenerationSpec, load_spec
from switchyard.kafka.control_topic import control_topic
from switchyard.kafka.probe import probe_gaps
from switchyard.layout import Layout
from switchyard.offsets import count_records, from_json
from switchyard.settings import Settings
from switchyard.tables import store
from switchyard.tables.book import DeltaBook
from switchyard.tables.progress import Progress, batches, newest_progress

MOST_PROBED = 20_000
MOST_NAMED = 5
_PLACE = ["topic", "partition", "offset"]


@dataclass(frozen=True)
class Finding:
    is_clean: bool
    text: str


def account_for_records(settings: Settings, kafka: Mapping[str, str]) -> Finding:
    """Every offset that the active generation has read over is stored, or the broker says that it held no record."""
    layout = settings.layout
    generation = DeltaBook(layout).standing().generation
    spec = None if generation is None else load_spec(layout, generation)
    progress = None if generation is None else newest_progress(layout, generation)
    if spec is None or progress is None:
        return Finding(True, "no generation is active, so there is nothing to account for")
    read = [row for row in batches(layout, spec.generation) if row.batchId <= progress.batchId]
    ends = from_json(read[-1].endOffsets) if read else spec.startOffsets
    gaps = find_gaps(spec.startOffsets, ends, _stored(layout, spec, progress))
    return _judge(kafka, gaps, f"the {count_records(spec.startOffsets, ends)} offsets of generation {spec.generation}")


def account_for_commands(settings: Settings, kafka: Mapping[str, str]) -> Finding:
    """Every message of the control topic up to the committed offsets is kept, and has an outcome or is under way."""
    layout, topic = settings.layout, settings.control_topic
    # The messages first: one that is stored while this looks must not be missed in an older ledger.
    messages = store.read_rows(layout, "control_raw")
    with control_topic(kafka, topic) as control:
        ends = {topic: control.committed_offsets()}
    unsettled = find_unsettled(messages, DeltaBook(layout).ledger())
    if unsettled:
        named = ", ".join(unsettled[:MOST_NAMED])
        return Finding(False, f"{len(unsettled)} control messages have no outcome, the first: {named}")
    places = store.read_arrow(layout, "control_raw", columns=_PLACE)
    stored = _positions(places.filter(pc.equal(places["topic"], topic)))
    starts = {
        topic: {p: int(stored[topic, p].min()) if (topic, p) in stored else end for p, end in ends[topic].items()}
    }
    finding = _judge(kafka, find_gaps(starts, ends, stored), f"the {len(messages)} control messages")
    return finding if not finding.is_clean else Finding(True, f"{finding.text}; each is settled or under way")


def _stored(layout: Layout, spec: GenerationSpec, progress: Progress) -> dict[tuple[str, int], Any]:
    tables = []
    for name in ("users", "accounts", "rejects"):
        table = store.open_version(layout, name, progress.version_of(name))
        tables.append(store.read_snapshot(table, name, generation=spec.generation, columns=_PLACE))
    return _positions(pa.concat_tables(tables))


def _positions(places: pa.Table) -> dict[tuple[str, int], Any]:
    kinds = places.group_by(["topic", "partition"]).aggregate([("offset", "list")])
    return {
        (row["topic"], row["partition"]): np.asarray(offsets.values, np.int64)
        for row, offsets in zip(kinds.select(["topic", "partition"]).to_pylist(), kinds["offset_list"], strict=True)
    }


def _judge(kafka: Mapping[str, str], gaps: list[Gap], what: str) -> Finding:
    if not gaps:
        return Finding(True, f"{what} are all stored")
    looked_at = take_first(gaps, MOST_PROBED)
    probed = probe_gaps(kafka, looked_at)
    size = sum(gap.size for gap in gaps)
    text = f"of {what}, {size} are not stored"
    if probed.lost:
        named = ", ".join(f"{topic}-{partition}-{offset}" for topic, partition, offset in probed.lost[:MOST_NAMED])
        return Finding(False, f"{text}, and Kafka holds a record at {len(probed.lost)} of them, the first: {named}")
    parts = [f"{probed.tombstones} tombstones", f"{probed.empty} without a record"]
    if probed.gone:
        parts.append(f"{probed.gone} that Kafka no longer holds")
    rest = size - sum(gap.size for gap in looked_at)
    if rest:
        parts.append(f"{rest} that were not looked at")
    return Finding(True, f"{text}: {', '.join(parts)}")
