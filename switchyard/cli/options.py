"""What several commands share: the settings, options, and what values they accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option

if TYPE_CHECKING:
    from switchyard.settings import Settings

Json = Annotated[bool, Option("--json", help="Print one JSON document.")]


def read_settings() -> Settings:
    # Importing pydantic takes longer than everything that a help text needs.
    from switchyard.settings import load_settings

    return load_settings()


def parse_count(given: str | int, most: int = 1_000_000) -> int:
    text = str(given)  # typer parses the defaults too, which are numbers
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= most:
        raise BadParameter(f"{text!r} is not a whole number from 1 to {most}")
    return number


def parse_rate(text: str, most: int = 1_000_000) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise BadParameter(f"{text!r} is not a number above 0 and up to {most}")
    return number


def number(help: str, parser: Callable[[str], float] = parse_count, metavar: str = "N") -> Any:
    return Option(parser=parser, metavar=metavar, help=help)
