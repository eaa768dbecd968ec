"""Read data files piece by piece, so that memory does not grow with a file, whatever wrote it.

Arrow's own scanner of datasets decodes whole row groups, and one that Spark wrote may hold millions of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from switchyard.tables.folders import Folder

PIECE_ROWS = 64 * 1024
PIECE_BYTES = 8 * 2**20
FILE_BYTES = 32 * 2**20
"""What is held in memory until it is written as one file: some 8 MB on disk."""

BUFFER_BYTES = 2 * 2**20
"""Read ahead in each column: few requests in a bucket."""
DECODED_ROWS = 1024
DECODED_RAW_ROWS = 128
"""Rows that are decoded before memory is checked: a repeated value takes no room in a file, and all in memory."""

SIDE_BY_SIDE = 32


def scan_file(folder: Folder, path: str, schema: pa.Schema, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Read the rows of a file in order, in pieces of bounded size; columns that it was written without are null."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    with folder.filesystem.open_input_file(folder.full(path)) as source:
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES)
        decoded = (conform(rows, wanted) for rows in _decode(file, wanted))
        for rows in gather(decoded, PIECE_ROWS, PIECE_BYTES):
            yield rows.combine_chunks()


def scan_files(
    folder: Folder, rows_in: Mapping[str, int | None], schema: pa.Schema, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Read the rows of many files, given with the number of rows in each; small files are opened side by side."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    most = _most_rows(wanted.names)
    few = most // SIDE_BY_SIDE
    small = [path for path, rows in rows_in.items() if rows is not None and rows <= few]
    for first in range(0, len(small), SIDE_BY_SIDE):
        paths = [folder.full(path) for path in small[first : first + SIDE_BY_SIDE]]
        dataset = ds.dataset(paths, schema=schema, filesystem=folder.filesystem, format="parquet")
        yield dataset.to_table(wanted.names)
    for path, rows in rows_in.items():
        if rows is None or rows > few:
            yield from scan_file(folder, path, schema, columns)


def _most_rows(names: Collection[str]) -> int:
    return DECODED_RAW_ROWS if "value" in names else DECODED_ROWS


def _decode(file: pq.ParquetFile, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    names = file.schema_arrow.names
    # Rows are counted by a column that is there, also where none of the wanted is.
    present = [name for name in names if name in wanted.names] or names[:1]
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        sizes = [group.column(place).total_uncompressed_size for place in range(group.num_columns)]
        width = sum(size for size, name in zip(sizes, names, strict=True) if name in present)
        fitting = PIECE_BYTES * max(1, group.num_rows) // max(1, width)
        rows = max(1, min(_most_rows(present), fitting))
        yield from file.iter_batches(rows, row_groups=[number], columns=present, use_threads=False)


def conform(rows: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Give rows the columns of a schema and its types; a column that is not there is null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def gather(pieces: Iterable[pa.Table], most_rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """Join pieces until each has so many rows or bytes."""
    held: list[pa.Table] = []
    rows = size = 0
    for piece in pieces:
        held.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.concat_tables(held)
