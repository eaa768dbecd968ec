"""The documentation against the code: settings, commands and links cannot drift apart unseen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from switchyard.cli.main import build_parser
from switchyard.settings import Settings

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def settings_rows() -> list[str]:
    """The rows that the table of docs/settings.md must have, from the fields themselves."""
    return [
        f"| `SWITCHYARD_{name.upper()}` | {format_default(field.default)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]


def format_default(value: object) -> str:
    return "unset" if value is None else f"`{value}`"


def documented_commands() -> set[str]:
    """The first word of every row of the README's table of commands."""
    return set(re.findall(r"^\| `([a-z]+)[^`]*` \|", (PROJECT / "README.md").read_text(), re.MULTILINE))


def existing_commands() -> set[str]:
    return {name for action in build_parser()._actions for name in (action.choices or {})}


def test_the_table_of_settings_is_what_the_code_says() -> None:
    lines = (PROJECT / "docs" / "settings.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| `SWITCHYARD_")]
    wanted = settings_rows()
    assert rows == wanted, "make the table of docs/settings.md read:\n" + "\n".join(wanted)


def test_the_readme_lists_every_command_and_no_other() -> None:
    assert documented_commands() == existing_commands()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_relative_links_point_at_files(page: Path) -> None:
    targets = [target for target in LINK.findall(FENCED.sub("", page.read_text())) if "://" not in target]
    files = [target.partition("#")[0] for target in targets if not target.startswith("#")]
    missing = [file for file in files if not (page.parent / file).exists()]
    assert not missing, f"{page.name} links to what does not exist: {', '.join(missing)}"


def test_every_fault_of_the_table_has_a_test_that_exists() -> None:
    text = (PROJECT / "docs" / "operations.md").read_text()
    section = text[text.index("## When something breaks") :].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    named = {row[0]: [name for name in re.findall(r"`([\w/.]+)`", row[-1]) if name != "faults"] for row in rows}
    untested = [fault for fault, row in zip(named, rows, strict=True) if "`" not in row[-1]]
    missing = [name for names in named.values() for name in names if not (PROJECT / "tests" / name).exists()]
    assert (untested, missing) == ([], [])
