"""Compaction of the big tables: executors write few sorted files, the driver commits them in the place of many.

The files keep what the stream relies on: they are sorted by the key that it finds rows by, so that their spans hardly
overlap; unmatched rows of `joined` are in separate files; none is so large that revising a row is expensive.
The stream goes on meanwhile. If it replaces a file first, nothing is committed, and the others are tried in halves.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from switchyard.errors import SwitchyardError
from switchyard.layout import BIG_TABLES, Layout
from switchyard.policies import Keeping
from switchyard.records import JOIN_RULES, PLACE, RIGHT
from switchyard.spec import GenerationSpec
from switchyard.stream.audit import read_paths
from switchyard.stream.bulk import count_rows
from switchyard.swap.generations import load_spec
from switchyard.swap.history import Ledger
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import files, store
from switchyard.tables.compaction import choose_files, cut_into_groups, replace_files
from switchyard.tables.files import COMPACTED, LiveFile, list_files
from switchyard.tables.folders import Folder

FILES_PER_GROUP = 32
"""How many full files one commit makes"""
log = logging.getLogger("switchyard.upkeep.maintenance")


@dataclass(frozen=True)
class Compacted:
    table: str
    generation: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    left_alone: int
    """Files that the stream has replaced first; the next maintenance looks at them again."""


def compact_tables(
    start_spark: Callable[[], SparkSession], layout: Layout, keeping: Keeping, dry_run: bool = False
) -> list[Compacted]:
    """Compact every big table of every generation that has rows to keep, one after the other."""
    done = []
    for spec in specs_to_compact(layout, HistoryStore(layout).ledger()):
        for name in BIG_TABLES:
            key = sort_key(name, spec.joinType)
            chosen = find_files(layout, name, spec.generation, key, keeping)
            if chosen and dry_run:
                done.append(_would_become(name, spec.generation, chosen, keeping))
            elif chosen:
                work = _Compaction(start_spark(), layout, name, spec.generation, key, keeping.file_bytes)
                done.append(work.run(chosen))
    return done


def specs_to_compact(layout: Layout, ledger: Ledger) -> list[GenerationSpec]:
    """Return the specs of all generations but the removed ones, which are about to lose their rows."""
    specs = [load_spec(layout, generation) for generation in ledger.generations if not ledger.is_removed(generation)]
    return [spec for spec in specs if spec is not None]


def sort_key(name: str, join_type: str) -> list[str]:
    """Return the columns by which the stream finds rows of a table."""
    return JOIN_RULES[join_type].leading.place if name == "joined" else PLACE


def find_files(layout: Layout, name: str, generation: int, key: list[str], keeping: Keeping) -> list[LiveFile]:
    if not store.has_table(layout, name):
        return []
    live = list_files(store.open_table(layout, name), generation, key)
    before = datetime.now(UTC) - keeping.compact_after
    return choose_files(live, keeping.file_bytes, int(before.timestamp() * 1000))


def _would_become(name: str, generation: int, chosen: Sequence[LiveFile], keeping: Keeping) -> Compacted:
    size = sum(file.size for file in chosen)
    return Compacted(name, generation, len(chosen), count_parts(size, keeping.file_bytes), size, size, 0)


def count_parts(size: float, file_bytes: int) -> int:
    return max(1, round(size / file_bytes))


@dataclass(frozen=True)
class _Compaction:
    spark: SparkSession
    layout: Layout
    name: str
    generation: int
    key: list[str]
    file_bytes: int

    def run(self, chosen: Sequence[LiveFile]) -> Compacted:
        waiting = cut_into_groups(chosen, FILES_PER_GROUP * self.file_bytes)
        merged: list[LiveFile] = []
        written: list[AddAction] = []
        left_alone, began = 0, time.monotonic()
        while waiting:
            group = waiting.pop(0)
            added = self._merge(group)
            if added is None:
                here = self._still_there(group)
                halves = [half for half in (here[: len(here) // 2], here[len(here) // 2 :]) if len(half) > 1]
                left_alone += len(group) - sum(map(len, halves))
                waiting = halves + waiting
                continue
            merged += group
            written += added
            log.info(
                "%s of generation %s: %s of %s files became %s after %.0f s",
                *(self.name, self.generation, len(merged), len(chosen), len(written), time.monotonic() - began),
            )
        before, after = sum(file.size for file in merged), sum(action.size for action in written)
        return Compacted(self.name, self.generation, len(merged), len(written), before, after, left_alone)

    def _merge(self, group: Sequence[LiveFile]) -> list[AddAction] | None:
        """Return the files that took the place of a group; None when one of the group is gone meanwhile."""
        if len(self._still_there(group)) < len(group):
            return None
        folder = Folder.at(self.layout.table(self.name))
        relative = f"{files.generation_folder(self.generation)}/{COMPACTED}{uuid.uuid4()}"
        try:
            for number, (rows, size) in enumerate(self._parts(folder, group)):
                self._write(rows, count_parts(size, self.file_bytes), folder, f"{relative}-{number}")
            added = self._describe(folder, relative, sum(file.rows for file in group))
        except Exception:
            self._discard(folder, relative)
            raise
        if replace_files(self.layout, self.name, self.generation, group, added):
            return added
        self._discard(folder, relative)
        return None

    def _describe(self, folder: Folder, relative: str, rows: int) -> list[AddAction]:
        paths = [path for number in range(2) for path in folder.list_parquet(f"{relative}-{number}")]
        written = [files.describe_file(folder, self.generation, path, data_change=False) for path in paths]
        if (found := sum(map(count_rows, written))) != rows:
            what = f"{self.name} of generation {self.generation}"
            raise SwitchyardError(f"{what}: {rows} rows became {found}; nothing was changed")
        return [action for action in written if count_rows(action)]

    def _discard(self, folder: Folder, relative: str) -> None:
        for number in range(2):
            folder.delete_folder(f"{relative}-{number}")

    def _parts(self, folder: Folder, group: Sequence[LiveFile]) -> list[tuple[DataFrame, float]]:
        """Return the rows of a group with about the bytes they take; of `joined`, the unmatched ones apart."""
        rows = read_paths(self.spark, self.name, [folder.spark_uri(file.path) for file in group])
        size, count = sum(file.size for file in group), sum(file.rows for file in group)
        unmatched = sum(file.unmatched_rows for file in group) if self.name == "joined" else 0
        share = unmatched / max(1, count)
        is_unmatched = F.col(RIGHT.offset).isNull() if self.name == "joined" else F.lit(False)
        parts = [(rows.where(~is_unmatched), size * (1 - share)), (rows.where(is_unmatched), size * share)]
        return [part for part, there in zip(parts, (count > unmatched, unmatched > 0), strict=True) if there]

    def _write(self, rows: DataFrame, parts: int, folder: Folder, relative: str) -> None:
        ordered = rows.repartitionByRange(parts, *self.key) if parts > 1 else rows.coalesce(1)
        ordered.sortWithinPartitions(*self.key).write.parquet(folder.spark_uri(relative))

    def _still_there(self, group: Sequence[LiveFile]) -> list[LiveFile]:
        live = {file.path for file in list_files(store.open_table(self.layout, self.name), self.generation)}
        return [file for file in group if file.path in live]
