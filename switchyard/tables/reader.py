"""Answer queries about a stable name page by page, by DuckDB over the files that the Delta log names.

Files never change. So the best rows of a query are kept, and for a later version only its new files are read.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from switchyard.errors import InputError
from switchyard.tables.commits import DataFile, files_since, oldest_needed
from switchyard.tables.live import Files, LiveTables, Rows
from switchyard.tables.long_text import cut_in_sql
from switchyard.tables.pieces import scan_file
from switchyard.tables.queries import WINDOW_ROWS, Condition, Query, order, quote, where
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.stable_names import NEWEST_BY, resolve_name
from switchyard.tables.store import Row

KEPT_QUERIES = 64
KEPT_BYTES = 128 * 2**20
"""The memory for the best rows of all queries."""
MEMORY = "1GB"
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
        try:
            return self._page(name, query)
        except duckdb.OutOfMemoryException:
            raise InputError(
                f"the rows of {name} are too long to be looked through in {MEMORY}: use tail without filter and sort, "
                "or read the table with Spark"
            ) from None

    def _page(self, name: str, query: Query) -> Page:
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
        """Answer a query; readers that ask the same at the same time wait for the first answer."""
        condition = where(table, query)
        key = (table, source.generation, condition, query.sort)
        with self._lock:
            lock, kept = self._found.setdefault(key, (threading.Lock(), []))
            self._found.move_to_end(key)
            while len(self._found) > 1 and (len(self._found) > KEPT_QUERIES or self._kept_bytes() > KEPT_BYTES):
                self._found.popitem(last=False)
        with lock:
            search = Search(self, table, source, condition, order(table, query.sort, NEWEST_BY[table]))
            is_plain = not query.sort and condition == Condition()
            kept[:] = [search.go_on(kept[0] if kept else None, is_plain)]
            return kept[0]

    def _kept_bytes(self) -> int:
        return sum(found.best.nbytes for _, kept in self._found.values() for found in kept)

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(
                    config={
                        "memory_limit": MEMORY,
                        # Refuse what does not fit, instead of writing it into the working folder of the process.
                        "temp_directory": "",
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
        """Return the files that may hold one of the newest rows."""
        stamps = NEWEST_BY[self.table]
        return files_since(files, stamps, oldest_needed(files, stamps, WINDOW_ROWS))

    def _best(self, known: pa.Table | None, files: Sequence[DataFile]) -> pa.Table:
        names = SCHEMAS[self.table].names
        schema = SCHEMAS[self.table].append(pa.field(_FILE, pa.string()))
        columns, cut = ", ".join(map(quote, [*names, _FILE])), cut_in_sql(self.table, [*names, _FILE])
        parts, parameters = [], []
        with self.reader._cursor() as cursor:
            if known is not None and known.num_rows:
                cursor.register("known", known)
                parts.append(f"select {columns} from known")
            if files:
                parts.append(f"select {cut} from {self._scan(cursor, files)} where {self.condition.sql}")
                parameters = list(self.condition.parameters)
            if not parts:
                return schema.empty_table()
            text = f"select * from ({' union all '.join(parts)}) order by {self.ordered} limit {WINDOW_ROWS}"
            return cursor.sql(text, params=parameters).to_arrow_table().cast(schema)

    def _count(self, files: Sequence[DataFile], best: pa.Table, is_plain: bool) -> dict[str, int]:
        """Count the rows that match in each file."""
        # With fewer matches than the window holds, all of them are among the best.
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
        """Write a relation with the columns of the table and the file of each row."""
        folder = self.source.folder
        names = [name for name in SCHEMAS[self.table].names if name != "generation"]
        columns = f"{int(self.source.generation or 0)}::bigint as generation, {', '.join(map(quote, names))}"
        if folder.is_local and self.table != "rejects":
            listed = ", ".join("'" + folder.full(file.path).replace("'", "''") + "'" for file in files)
            file = f"substr(filename, {len(folder.path) + 2}) as {_FILE}"
            return f"(select {columns}, {file} from read_parquet([{listed}], filename=true, hive_partitioning=false))"
        # To read a bucket, DuckDB would have to fetch an extension. And it reads 2,048 rows at a time, which are
        # gigabytes where values are long, as in `rejects`.
        cursor.register("pieces", self._read(files))
        return f"(select {columns}, {_FILE} from pieces)"

    def _read(self, files: Iterable[DataFile]) -> pa.RecordBatchReader:
        schema = SCHEMAS[self.table].append(pa.field(_FILE, pa.string()))

        def read() -> Iterator[pa.RecordBatch]:
            for file in files:
                for rows in scan_file(self.source.folder, file.path, SCHEMAS[self.table]):
                    path = pa.repeat(pa.scalar(file.path), rows.num_rows)
                    yield from rows.append_column(schema.field(_FILE), path).to_batches()

        return pa.RecordBatchReader.from_batches(schema, read())
