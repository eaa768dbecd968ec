"""Cut long text, and show its length behind it: a page of whole values would be a page of megabytes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from switchyard.tables.schemas import SCHEMAS

MOST_CHARACTERS = 2_000
_END = "… ({} characters)"


def cut_rows(rows: pa.Table) -> pa.Table:
    for position, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            column = rows[field.name]
            # Bytes first: they are known, characters are counted.
            if (pc.max(pc.binary_length(column)).as_py() or 0) > MOST_CHARACTERS:
                rows = rows.set_column(position, field, _cut(column))
    return rows


def _cut(column: pa.ChunkedArray) -> pa.ChunkedArray:
    length, (before, after) = pc.utf8_length(column), _END.split("{}")
    start = pc.utf8_slice_codeunits(column, 0, MOST_CHARACTERS)
    cut = pc.binary_join_element_wise(start, before, length.cast(pa.string()), after, "")
    return pc.if_else(pc.greater(length, MOST_CHARACTERS), cut, column)


def cut_in_sql(table: str, names: list[str]) -> str:
    """Write the columns of a table as a list for SELECT."""
    before, after = _END.split("{}")
    return ", ".join(
        f'case when strlen("{name}") <= {MOST_CHARACTERS} or length("{name}") <= {MOST_CHARACTERS} then "{name}" '
        f'else left("{name}", {MOST_CHARACTERS}) || \'{before}\' || length("{name}") || \'{after}\' end as "{name}"'
        if name in SCHEMAS[table].names and pa.types.is_string(SCHEMAS[table].field(name).type)
        else f'"{name}"'
        for name in names
    )


def is_cut(text: str) -> bool:
    before, after = _END.split("{}")
    start, found, end = text.rpartition(before)
    return len(start) == MOST_CHARACTERS and bool(found) and end.removesuffix(after).isdigit()
