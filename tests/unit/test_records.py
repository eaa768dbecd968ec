"""The declaration of the records is the only place that names their columns; everything else derives from it."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from switchyard.kafka.demo import draw_records
from switchyard.layout import PROJECT
from switchyard.records import JOINED, KEY, POSITION, SIDES
from switchyard.tables.schemas import SCHEMAS, TIMESTAMP

PACKAGE = PROJECT / "switchyard"
DECLARATION = PACKAGE / "records.py"
EVERYDAY = {
    "name": "many things have a name",
    "age": "so has a process",
}
"""Columns whose names are words of the code as well, and so cannot be told from these."""
EXCEPTIONS = {
    ("switchyard/cli/reading.py", "balance"): "an example in the help of `tail`, which is an API text",
    ("switchyard/cli/operating.py", "userId"): "the help of `forget`, which is an API text",
}
COLUMNS = sorted({*JOINED, *(side.own_key for side in SIDES)} - {*EVERYDAY})
COLUMN = re.compile(rf"(?<!\w)({'|'.join(COLUMNS)})(?!\w)")
SUFFIX = re.compile(rf"^({'|'.join(name.capitalize() for name in POSITION)})$")
"""What would make the name of a position out of the name of a side."""


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from ((node.lineno, found) for found in COLUMN.findall(node.value))
            yield from ((node.lineno, found) for found in SUFFIX.findall(node.value))
        elif isinstance(node, ast.Attribute):
            yield from ((node.lineno, found) for found in COLUMN.findall(node.attr))
        elif isinstance(node, ast.keyword) and node.arg:
            yield from ((node.value.lineno, found) for found in COLUMN.findall(node.arg))


def modules() -> list[Path]:
    folders = (PACKAGE, *(PROJECT / name for name in ("dags", "jobs", "plugins")))
    found = (path for folder in folders for path in folder.rglob("*.py"))
    return [path for path in found if "node_modules" not in path.parts and path != DECLARATION]


def names_in_page(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, found) for found in COLUMN.findall(line))


def test_no_column_of_a_record_is_named_outside_of_the_declaration() -> None:
    pages = sorted((PACKAGE / "web" / "page" / "src").iterdir())
    named_in = {path: names_in(ast.parse(path.read_text())) for path in modules()}
    named_in |= {path: names_in_page(path.read_text()) for path in pages}
    found = {
        (str(path.relative_to(PROJECT)), name): f"{path.relative_to(PROJECT)}:{line} names {name}"
        for path, names in named_in.items()
        for line, name in names
    }
    assert pages
    named = [text for place, text in found.items() if place not in EXCEPTIONS]
    assert named == [], "derive these names from switchyard/records.py"
    assert EXCEPTIONS.keys() <= found.keys(), "an exception is not needed any more"


@pytest.mark.parametrize(
    "source",
    ['rows["balance"]', "where('accountOffset is null')", "row.email", 'f"{side}Partition"', "Row(userId=1)"],
)
def test_a_column_is_found_however_it_is_named(source: str) -> None:
    assert len(list(names_in(ast.parse(source)))) == 1


@pytest.mark.parametrize("source", ['const SECRET = ["email"];', "row.balance", "{ accountOffset: 1 }"])
def test_a_column_is_found_in_the_page_however_it_is_named(source: str) -> None:
    assert len(list(names_in_page(source))) == 1


def test_the_root_of_the_package_stays_small() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 12


def test_the_columns_of_the_contract_follow_from_the_declaration() -> None:
    position = ["ts", "topic", "partition", "offset"]
    assert SCHEMAS["users"].names == ["generation", "userId", "name", "email", "age", *position]
    assert SCHEMAS["accounts"].names == ["generation", "userId", "accountType", "balance", *position]
    positions = [f"{side}{name}" for side in ("user", "account") for name in ("Ts", "Partition", "Offset")]
    values = ["userId", "name", "email", "age", "accountType", "balance"]
    assert SCHEMAS["joined"].names == ["generation", *values, *positions]
    types = [str(field.type) for field in SCHEMAS["joined"]]
    position = [str(TIMESTAMP), "int32", "int64"]
    assert types == ["int64", "string", "string", "string", "int64", "string", "double", *position, *position]


def test_the_demo_makes_records_with_exactly_the_declared_fields() -> None:
    records = list(islice(draw_records(random.Random(1)), 1000))
    assert {(record.side, *record.fields) for record in records} == {(side, *side.columns) for side in SIDES}
    assert all(isinstance(record.fields[KEY], str) for record in records)
