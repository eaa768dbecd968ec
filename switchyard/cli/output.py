"""What the commands print: JSON for programs, lines for people; colours, tables and progress only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import typer

Row = dict[str, Any]
PrintLine = Callable[[str], None]
# Only words that are a verdict have a colour.
COLOURS = {"ok": "green", "FAIL": "red", "yes": "green", "no": "red", "WARNING": "yellow", "ERROR": "red"}
# Rows are never cut: the terminal wraps what is wider than itself.
_WIDER_THAN_ANY_ROW = 1_000_000


def show(document: Any, as_json: bool, text: str | None = None) -> None:
    """Print the document as JSON; for people the text or, without one, a line for each name and value."""
    if as_json:
        print_json(document)
    elif text is None:
        print_pairs(document)
    else:
        print(text)


def print_line(line: str) -> None:
    print(line, flush=True)


def print_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def choose_print(as_json: bool) -> PrintLine:
    """With --json, stdout belongs to the document."""
    return print_on_stderr if as_json else print_line


def paint(word: str) -> str:
    colour = COLOURS.get(word.strip())
    return typer.style(word, fg=colour) if colour and sys.stdout.isatty() and "NO_COLOR" not in os.environ else word


@contextmanager
def progress(text: str, as_json: bool) -> Iterator[None]:
    """Show on a terminal that work goes on, and for how long, below the lines that are printed meanwhile."""
    if as_json or not sys.stdout.isatty():
        yield
        return
    # Here and below: rich takes longer to import than most commands take, and a pipe needs none of it.
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    columns = SpinnerColumn(), "{task.description}", TimeElapsedColumn()
    with Progress(*columns, transient=True, redirect_stderr=sys.stderr.isatty()) as shown:
        shown.add_task(text, total=None)
        yield


def print_json(document: Any) -> None:
    print(json.dumps(document, default=_plain, ensure_ascii=False))


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_pairs(document: Row) -> None:
    width = max(map(len, document))
    for name, value in document.items():
        print(f"{name:{width}}  {paint(format_value(value))}")


def print_rows(rows: list[Row], header: bool = True) -> None:
    if not rows:
        if header:
            print("(no rows)")
        return
    cells = [[format_value(value) for value in row.values()] for row in rows]
    if sys.stdout.isatty():
        _print_on_terminal(list(rows[0]), cells, header)
        return
    table = [list(rows[0]), *cells] if header else cells
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print_line("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_on_terminal(names: list[str], cells: list[list[str]], header: bool) -> None:
    """Print the same columns with rich, which knows how wide the characters of other scripts are."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header, header_style="bold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console(width=_WIDER_THAN_ANY_ROW).print(table)


def format_log(row: Row) -> str:
    generation = f"g{row['generation']}" if row["generation"] is not None else "-"
    swap = f"  [{row['swapId']}]" if row["swapId"] else ""
    level = paint(f"{row['level']:7}")
    return f"{format_value(row['ts'])}  {level}  {generation:4}  {row['msg']}{swap}"


def format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(item)}" for name, item in value.items()) or "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return str(value)
