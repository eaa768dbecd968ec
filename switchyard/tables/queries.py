"""Check what a reader asks of a table (filters, quick text, sort, a bounded window) and turn it into SQL. Pure.

Only names of columns that the table has get into the text of a statement; values are always parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from switchyard.errors import InputError
from switchyard.records import SIDES
from switchyard.tables.schemas import SCHEMAS

WINDOW_ROWS = 10_000
MOST_ROWS = 1_000
MOST_FILTERS = 20
MOST_TEXT = 200
SECRET_COLUMNS = frozenset({"value", *(field.name for side in SIDES for field in side.fields if field.holds_addresses)})
"""Columns with e-mail addresses: filtering or sorting must not reveal them to a viewer that may not see them."""

_COMPARISONS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_TEXT_TESTS = {
    "contains": "contains(lower({column}), lower(?))",
    "startsWith": "starts_with(lower({column}), lower(?))",
    "endsWith": "ends_with(lower({column}), lower(?))",
    "notContains": "not coalesce(contains(lower({column}), lower(?)), false)",
}
_NULL_TESTS = {"blank": "{column} is null", "notBlank": "{column} is not null"}
OPERATORS = (*_COMPARISONS, *_TEXT_TESTS, *_NULL_TESTS)


@dataclass(frozen=True)
class Filter:
    column: str
    operator: str
    value: Any = None


@dataclass(frozen=True)
class Sort:
    column: str
    descending: bool = False


@dataclass(frozen=True)
class Query:
    filters: tuple[Filter, ...] = ()
    words: tuple[str, ...] = ()
    """Quick filter: every word must be in some column of text."""
    sort: tuple[Sort, ...] = ()
    """Empty means newest first."""
    offset: int = 0
    limit: int = 100
    hidden: frozenset[str] = frozenset()
    """Columns that the quick filter must not search."""

    @property
    def end(self) -> int:
        return self.offset + self.limit


@dataclass(frozen=True)
class Condition:
    """The text after WHERE, and its parameters."""

    sql: str = "true"
    parameters: tuple[Any, ...] = ()


def parse_query(
    table: str,
    *,
    filters: Sequence[str] = (),
    quick: str = "",
    sort: str = "",
    offset: int = 0,
    limit: int = 100,
    sees_addresses: bool = True,
) -> Query:
    """Check `column:operator:value` filters, and a sort `column,-column` where `-` means descending."""
    if offset < 0 or not 1 <= limit <= MOST_ROWS or offset + limit > WINDOW_ROWS:
        raise InputError(
            f"a page has 1 to {MOST_ROWS} rows and lies within the first {WINDOW_ROWS}: filter to see other rows"
        )
    if len(filters) > MOST_FILTERS:
        raise InputError(f"more than {MOST_FILTERS} filters: leave some out")
    if len(quick) > MOST_TEXT:
        raise InputError(f"the quick filter has more than {MOST_TEXT} characters: shorten it")
    hidden = frozenset() if sees_addresses else SECRET_COLUMNS
    return Query(
        tuple(_parse_filter(table, text, hidden) for text in filters),
        tuple(quick.replace(chr(31), " ").split()),
        tuple(_parse_sort(table, part, hidden) for part in sort.split(",") if part.strip()),
        offset,
        limit,
        hidden,
    )


def _parse_filter(table: str, text: str, hidden: Collection[str]) -> Filter:
    name, _, rest = text.partition(":")
    operator, _, value = rest.partition(":")
    column = _check_column(table, name, hidden)
    if operator not in OPERATORS:
        raise InputError(f"the filter operator {operator[:20]!r} is not known; use one of {', '.join(OPERATORS)}")
    if operator in _NULL_TESTS:
        return Filter(name, operator)
    if len(value) > MOST_TEXT:
        raise InputError(f"the value of the filter on {name} has more than {MOST_TEXT} characters: shorten it")
    if operator in _TEXT_TESTS and not pa.types.is_string(column.type):
        raise InputError(f"{name} is not text, so it cannot be searched with {operator}: use eq, lt, le, gt or ge")
    return Filter(name, operator, _parse_value(column, value))


def _parse_sort(table: str, part: str, hidden: Collection[str]) -> Sort:
    name = part.strip()
    return Sort(_check_column(table, name.removeprefix("-"), hidden).name, name.startswith("-"))


def _check_column(table: str, name: str, hidden: Collection[str]) -> pa.Field:
    schema = SCHEMAS[table]
    if name not in schema.names:
        raise InputError(f"there is no column {name[:50]!r}; the columns are {', '.join(schema.names)}")
    if name in hidden:
        raise InputError(f"{name} holds e-mail addresses that you may not see: it can be neither sorted nor filtered")
    return schema.field(name)


def _parse_value(column: pa.Field, text: str) -> Any:
    try:
        if pa.types.is_integer(column.type):
            # DuckDB's parameters have 64 bits; a longer number is an error here.
            return pa.scalar(int(text), pa.int64()).as_py()
        if pa.types.is_floating(column.type):
            number = float(text)
            if not math.isfinite(number):
                raise ValueError
            return number
        if pa.types.is_timestamp(column.type):
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        kind = "an ISO timestamp" if pa.types.is_timestamp(column.type) else "a number"
        raise InputError(f"the filter on {column.name} needs {kind}") from None
    return text


def where(table: str, query: Query) -> Condition:
    parts: list[str] = []
    parameters: list[Any] = []
    for item in query.filters:
        parts.append(_test(item))
        parameters += [] if item.operator in _NULL_TESTS else [item.value]
    searched = [quote(f.name) for f in SCHEMAS[table] if pa.types.is_string(f.type) and f.name not in query.hidden]
    # All text of a row joined by a character that no word has, and made lower case once for all words.
    text = f"lower(concat_ws(chr(31), {', '.join(searched)}))"
    for word in query.words:
        parts.append(f"contains({text}, lower(?))")
        parameters.append(word)
    return Condition(" and ".join(parts), tuple(parameters)) if parts else Condition()


def _test(item: Filter) -> str:
    column = quote(item.column)
    if item.operator in _COMPARISONS:
        return f"{column} {_COMPARISONS[item.operator]} ?"
    return (_TEXT_TESTS | _NULL_TESTS)[item.operator].format(column=column)


def order(table: str, sorts: Sequence[Sort], stamps: Sequence[str]) -> str:
    """Write what follows ORDER BY; newest first where the sort does not decide."""
    # Up to the position: pages that are read one after the other need one order.
    keys = [f"{quote(item.column)} {'desc' if item.descending else 'asc'} nulls last" for item in sorts]
    newest = ", ".join(quote(stamp) for stamp in stamps)
    keys.append(f"greatest({newest}) desc nulls last" if len(stamps) > 1 else f"{newest} desc nulls last")
    keys += [f"{quote(name)} desc nulls last" for name in SCHEMAS[table].names if name.lower().endswith("offset")]
    keys += [f"{quote(name)} asc nulls last" for name in SCHEMAS[table].names if name.lower().endswith("partition")]
    return ", ".join(keys)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
