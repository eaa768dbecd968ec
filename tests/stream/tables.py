"""Reads the small tables that stand in docstrings."""

from __future__ import annotations

import re

Table = list[dict[str, str | None]]


def parse_tables(docstring: str) -> dict[str, Table]:
    """Each table under the line `name:` before it (or ''), as rows of text; '-' is null."""
    tables: dict[str, Table] = {}
    name, header = "", []
    for line in map(str.strip, docstring.splitlines()):
        if title := re.fullmatch(r"(\w+):", line):
            name, header = title[1], []
        elif line.startswith("|") and not line.startswith("|-"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if header:
                values = [None if cell == "-" else cell for cell in cells]
                tables[name].append(dict(zip(header, values, strict=True)))
            else:
                header = cells
                tables[name] = []
    return tables
