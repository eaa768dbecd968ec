"""Do the parts of an audit that need no Spark: are all records stored, is every control message settled?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from switchyard.health.gaps import StoredOffsets, find_gaps, find_unsettled, take_first
from switchyard.kafka.control_topic import ControlTopic
from switchyard.kafka.probe import probe_gaps
from switchyard.layout import BIG_TABLES
from switchyard.offsets import Gap, count_records
from switchyard.settings import Settings
from switchyard.swap.generations import load_spec
from switchyard.swap.history import Ledger
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.batch_totals import read_chain
from switchyard.tables.files import LiveFile, list_files
from switchyard.tables.folders import Folder
from switchyard.tables.installation import installation_id
from switchyard.tables.pieces import scan_files
from switchyard.tables.progress import newest_progress
from switchyard.tables.schemas import SCHEMAS

MOST_PROBED = 20_000
MOST_NAMED = 5
_PLACE = ["topic", "partition", "offset"]


@dataclass(frozen=True)
class AccountingResult:
    is_clean: bool
    text: str


def account_for_records(settings: Settings, kafka: Mapping[str, str]) -> AccountingResult:
    """Check that each offset that the active generation has read is stored, or had no record, as the broker says."""
    layout = settings.layout
    generation = HistoryStore(layout).status_row().generation
    spec = None if generation is None else load_spec(layout, generation)
    progress = None if generation is None else newest_progress(layout, generation)
    if spec is None or progress is None:
        return AccountingResult(True, "no generation is active, so there is nothing to account for")
    ends = read_chain(layout, spec.generation, progress.batchId).end or spec.startOffsets
    tables = [store.open_version(layout, name, progress.version_of(name)) for name in BIG_TABLES if name != "joined"]
    gaps = find_gaps(spec.startOffsets, ends, lambda spans: _scan_places(tables, spec.generation, spans))
    return _judge(kafka, gaps, f"the {count_records(spec.startOffsets, ends)} offsets of generation {spec.generation}")


def account_for_commands(settings: Settings, kafka: Mapping[str, str]) -> AccountingResult:
    """Check that each control message up to the committed offsets is stored, and is settled or under way."""
    layout, topic = settings.layout, settings.control_topic
    # Open the messages before the history: in an older history, a message stored in between would look unsettled.
    table = store.open_table(layout, "control_raw")
    with ControlTopic(kafka, topic, installation_id(layout)) as control:
        ends = {topic: control.committed_offsets()}
    kept = _look_through(table, topic, HistoryStore(layout).ledger())
    if kept.unsettled:
        named = ", ".join(kept.first_unsettled)
        return AccountingResult(False, f"{kept.unsettled} control messages have no outcome, the first: {named}")
    starts = {topic: {partition: kept.firsts.get(partition, end) for partition, end in ends[topic].items()}}
    gaps = find_gaps(starts, ends, lambda spans: _scan_places([table], None, spans))
    finding = _judge(kafka, gaps, f"the {kept.count} control messages")
    return finding if not finding.is_clean else AccountingResult(True, f"{finding.text}; each is settled or under way")


@dataclass
class Messages:
    """What the audit needs to know about the stored control messages."""

    count: int = 0
    unsettled: int = 0
    first_unsettled: list[str] = field(default_factory=list)
    firsts: dict[int, int] = field(default_factory=dict)
    """The first offset of each partition of the control topic."""


def _look_through(table: DeltaTable, topic: str, ledger: Ledger) -> Messages:
    kept = Messages()
    live = {file.path: file.rows or None for file in list_files(table, None)}
    for piece in scan_files(Folder.at(table.table_uri), live, SCHEMAS["control_raw"]):
        rows = piece.to_pylist()
        unsettled = find_unsettled(rows, ledger)
        kept.count += len(rows)
        kept.unsettled += len(unsettled)
        kept.first_unsettled = [*kept.first_unsettled, *unsettled][:MOST_NAMED]
        for row in rows:
            if row["topic"] == topic:
                kept.firsts[row["partition"]] = min(row["offset"], kept.firsts.get(row["partition"], row["offset"]))
    return kept


def _scan_places(tables: Sequence[DeltaTable], generation: int | None, spans: list[Gap]) -> Iterator[StoredOffsets]:
    """Read the stored offsets from the files that may hold one of some spans."""
    for table in tables:
        live = {file.path: file.rows or None for file in list_files(table, generation) if _may_hold(file, spans)}
        for rows in scan_files(Folder.at(table.table_uri), live, SCHEMAS["control_raw"], _PLACE):
            yield from _split(rows)


def _may_hold(file: LiveFile, spans: list[Gap]) -> bool:
    # A file without statistics may hold anything.
    is_known = file.offsets != (0, 0)
    return not is_known or any(
        file.partitions[0] <= span.partition <= file.partitions[1]
        and file.offsets[0] < span.end
        and file.offsets[1] >= span.first
        for span in spans
    )


def _split(rows: pa.Table) -> Iterator[StoredOffsets]:
    partitions, offsets = (rows[name].to_numpy() for name in ("partition", "offset"))
    for topic in pc.unique(rows["topic"]).to_pylist():
        is_there = pc.equal(rows["topic"], topic).to_numpy()
        for partition in np.unique(partitions[is_there]).tolist():
            yield topic, partition, offsets[is_there & (partitions == partition)]


def _judge(kafka: Mapping[str, str], gaps: Iterable[Gap], what: str) -> AccountingResult:
    looked_at, size = take_first(gaps, MOST_PROBED)
    if not size:
        return AccountingResult(True, f"{what} are all stored")
    probed = probe_gaps(kafka, looked_at)
    text = f"of {what}, {size} are not stored"
    if probed.lost:
        named = ", ".join(f"{topic}-{partition}-{offset}" for topic, partition, offset in probed.lost[:MOST_NAMED])
        return AccountingResult(
            False, f"{text}, and Kafka holds a record at {len(probed.lost)} of them, the first: {named}"
        )
    parts = [f"{probed.tombstones} tombstones", f"{probed.empty} without a record"]
    if probed.gone:
        parts.append(f"{probed.gone} that Kafka no longer holds")
    rest = size - sum(gap.size for gap in looked_at)
    if rest:
        parts.append(f"{rest} that were not looked at")
    return AccountingResult(True, f"{text}: {', '.join(parts)}")
