"""Pages of a stable name, by DuckDB over the files that the Delta log names.

What a query found in a file stays true, as files never change. So the best rows of a query are kept, and a later
version costs a look at the files that are new in it.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from switchyard.tables.commits import DataFile, files_since, oldest_needed
from switchyard.tables.names import NEWEST_BY, resolve_name
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.store import Row
from switchyard.web.live import Files, LiveTables, Rows
from switchyard.web.queries import WINDOW_ROWS, Condition, Query, order, quote, where

KEPT_QUERIES = 64
_FILE = "__file"


@dataclass(frozen=True)
class Page:
    rows: list[Row]
    total: int
    """How many rows match, in and beyond the window."""
    version: int
    generation: int | None = None


@dataclass
class Found:
    """The best rows of one query, and how many rows match in each file that was looked at."""

    best: pa.Table
    counts: dict[str, int]


class Reader:
    """Shared by all requests of a process."""

    def __init__(self, live: LiveTables) -> None:
        self.live = live
        self._database: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()
        self._found: OrderedDict[Any, tuple[threading.Lock, list[Found]]] = OrderedDict()

    def page(self, name: str, query: Query) -> Page:
        table = resolve_name(name)
        source = self.live.read(name)
        if isinstance(source, Rows):
            return self._page_of_rows(table, source, query)
        found = self._find(table, source, query)
        rows = found.best.slice(query.offset, query.limit).drop_columns([_FILE]).to_pylist()
        return Page(rows, sum(found.counts.values()), source.version, source.generation)

    def _page_of_rows(self, table: str, source: Rows, query: Query) -> Page:
        condition = where(table, query)
        with self._cursor() as cursor:
            cursor.register("source", source.rows)
            matching = f"from source where {condition.sql}"
            ordered = order(table, query.sort, NEWEST_BY[table])
            text = f"select * {matching} order by {ordered} limit {query.limit} offset {query.offset}"
            rows = cursor.sql(text, params=list(condition.parameters)).to_arrow_table().to_pylist()
            counted = cursor.execute(f"select count(*) {matching}", condition.parameters).fetchone()
        return Page(rows, counted[0] if counted else 0, source.version)

    def _find(self, table: str, source: Files, query: Query) -> Found:
        """The same question by many readers is answered once: the others wait for it."""
        condition = where(table, query)
        key = (table, source.generation, condition, query.sort)
        with self._lock:
            lock, kept = self._found.setdefault(key, (threading.Lock(), []))
            self._found.move_to_end(key)
            while len(self._found) > KEPT_QUERIES:
                self._found.popitem(last=False)
        with lock:
            search = Search(self, table, source, condition, order(table, query.sort, NEWEST_BY[table]))
            is_plain = not query.sort and condition == Condition()
            kept[:] = [search.go_on(kept[0] if kept else None, is_plain)]
            return kept[0]

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(
                    config={
                        "memory_limit": "1GB",
                        "autoinstall_known_extensions": "false",
                        "autoload_known_extensions": "false",
                    }
                )
            return self._database.cursor()


@dataclass(frozen=True)
class Search:
    """One question to the files of one table at one version."""

    reader: Reader
    table: str
    source: Files
    condition: Condition
    ordered: str

    def go_on(self, known: Found | None, is_plain: bool) -> Found:
        live = {file.path: file for file in self.source.files}
        if known is not None:
            gone = known.counts.keys() - live.keys()
            if gone and not gone.isdisjoint(known.best[_FILE].to_pylist()):
                known = None
        seen = {path: count for path, count in known.counts.items() if path in live} if known else {}
        fresh = [file for path, file in live.items() if path not in seen]
        if known is not None and not fresh:
            return Found(known.best, seen)
        read = self._newest(fresh) if is_plain else fresh
        best = self._best(known.best if known else None, read)
        return Found(best, seen | self._count(fresh, best, is_plain))

    def _newest(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Without a filter and a sort, only files that may hold one of the newest rows are read."""
        stamps = NEWEST_BY[self.table]
        return files_since(files, stamps, oldest_needed(files, stamps, WINDOW_ROWS))

    def _best(self, known: pa.Table | None, files: Sequence[DataFile]) -> pa.Table:
        names = SCHEMAS[self.table].names
        schema = SCHEMAS[self.table].append(pa.field(_FILE, pa.string()))
        columns = ", ".join(map(quote, [*names, _FILE]))
        parts, parameters = [], []
        with self.reader._cursor() as cursor:
            if known is not None and known.num_rows:
                cursor.register("known", known)
                parts.append(f"select {columns} from known")
            if files:
                parts.append(f"select {columns} from {self._scan(cursor, files)} where {self.condition.sql}")
                parameters = list(self.condition.parameters)
            if not parts:
                return schema.empty_table()
            text = f"select * from ({' union all '.join(parts)}) order by {self.ordered} limit {WINDOW_ROWS}"
            return cursor.sql(text, params=parameters).to_arrow_table().cast(schema)

    def _count(self, files: Sequence[DataFile], best: pa.Table, is_plain: bool) -> dict[str, int]:
        """How many rows match in each file; when all of them are among the best, these need only be counted."""
        if best.num_rows < WINDOW_ROWS:
            counted = Counter(best[_FILE].to_pylist())
            return {file.path: counted[file.path] for file in files}
        counts = {file.path: file.rows or 0 for file in files}
        asked = [file for file in files if file.rows is None or not is_plain]
        if not asked:
            return counts
        with self.reader._cursor() as cursor:
            text = f"select {_FILE}, count(*) from {self._scan(cursor, asked)} where {self.condition.sql} group by all"
            answered = dict(cursor.execute(text, self.condition.parameters).fetchall())
        return counts | {file.path: answered.get(file.path, 0) for file in asked}

    def _scan(self, cursor: duckdb.DuckDBPyConnection, files: Iterable[DataFile]) -> str:
        """A relation with the columns of the table, and the file of each row."""
        folder = self.source.folder
        paths = [folder.full(file.path) for file in files]
        names = [name for name in SCHEMAS[self.table].names if name != "generation"]
        columns = f"{int(self.source.generation or 0)}::bigint as generation, {', '.join(map(quote, names))}"
        if folder.is_local:
            listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
            file = f"substr(filename, {len(folder.path) + 2}) as {_FILE}"
            return f"(select {columns}, {file} from read_parquet([{listed}], filename=true, hive_partitioning=false))"
        dataset = ds.dataset(paths, schema=SCHEMAS[self.table], filesystem=folder.filesystem, format="parquet")
        # Batch by batch: DuckDB's own way to a bucket is an extension that would have to be fetched.
        cursor.register("dataset", dataset.scanner([*names, "__filename"]).to_reader())
        file = f"substr(__filename, {len(folder.path) + 2}) as {_FILE}"
        return f"(select {columns}, {file} from dataset)"
