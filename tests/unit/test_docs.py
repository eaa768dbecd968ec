"""The documentation against the code: settings, commands and links cannot drift apart unseen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from switchyard.cli.main import build_app
from switchyard.drivers.supervisor_state import State
from switchyard.local.installation import SERVERS, Installation
from switchyard.local.up import describe_ready
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.swap.history import Entry, Event
from switchyard.swap.log_messages import describe

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"`([\w/]+\.py)`")
FUNCTION = re.compile(r"`(?:\w+\.)*(\w+)\(\)`")
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
    """The first word of every row of the table of docs/commands.md."""
    return set(re.findall(r"^\| `([a-z]+)[^`]*` \|", (PROJECT / "docs" / "commands.md").read_text(), re.MULTILINE))


def blocks_of_readme(text: str) -> str:
    """The first block of output in the README that has the text, without its fences."""
    blocks = FENCED.findall((PROJECT / "README.md").read_text())
    return next(block for block in blocks if text in block).strip("`").strip("\n")


def existing_commands() -> set[str]:
    return set(build_app().commands)


def test_the_table_of_settings_is_what_the_code_says() -> None:
    lines = (PROJECT / "docs" / "settings.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| `SWITCHYARD_")]
    wanted = settings_rows()
    assert rows == wanted, "make the table of docs/settings.md read:\n" + "\n".join(wanted)


def test_the_page_of_commands_lists_every_command_and_no_other() -> None:
    assert documented_commands() == existing_commands()


def test_the_readme_stays_short() -> None:
    assert len((PROJECT / "README.md").read_text().split()) < 900


def test_the_readme_shows_what_up_prints_in_its_order() -> None:
    state = State(1, "boot", "ready", "generation 1 is active")
    printed = list(describe_ready(Settings(), state))
    shown = blocks_of_readme("ready: ").splitlines()
    start = shown.index(printed[0])
    assert [line[:12] for line in shown[start + 1 : start + len(printed)]] == [line[:12] for line in printed[1:]]


def test_the_readme_shows_every_component_that_up_starts_and_no_other() -> None:
    told = re.findall(r"^ *\d+\.\d s  (\S+) is ready$", blocks_of_readme("ready: "), re.MULTILINE)
    started = [component.name for component in Installation(Settings(), demo=True).components()]
    assert sorted(told) == sorted(started)
    assert [name for name in told if name in SERVERS] == list(SERVERS)


def test_the_readme_shows_a_swap_as_the_command_tells_it() -> None:
    target, start = Target("users", "accounts", "inner"), "latest"
    details = {
        Event.REQUESTED: "joinType left → inner",
        Event.STARTING: "attempt 1",
        Event.READY: "17 joined rows of 160 records equal the batch join",
        Event.APPLIED: "generation 2 is active",
    }
    entries = [Entry("cli-1", event, 2, target, start, detail=detail) for event, detail in details.items()]
    _, *followed, outcome = blocks_of_readme("switchyard swap").splitlines()
    assert all(re.match(r" *\d+\.\d s  ", line) for line in followed)
    assert [line.partition(" s  ")[2] for line in followed] == [
        f"{entry.event:10}  {describe(entry)}" for entry in entries
    ]
    assert outcome == f"APPLIED: {details[Event.APPLIED]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_relative_links_point_at_files(page: Path) -> None:
    targets = [target for target in LINK.findall(FENCED.sub("", page.read_text())) if "://" not in target]
    files = [target.partition("#")[0] for target in targets if not target.startswith("#")]
    missing = [file for file in files if not (page.parent / file).exists()]
    assert not missing, f"{page.name} links to what does not exist: {', '.join(missing)}"


def test_the_index_of_decisions_lists_every_record_once_and_knows_what_was_replaced() -> None:
    folder = PROJECT / "docs" / "adr"
    rows = re.findall(
        r"^\| (\d+) \| \[[^]]+\]\(([^)]+)\) \| ([^|]+) \| [^|]+ \|$", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert [name for _, name, _ in rows] == sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(number) for number, _, _ in rows] == [int(name[:4]) for _, name, _ in rows]
    status = re.compile(r"accepted|(partly )?replaced by (\d+)")
    assert [number for number, _, said in rows if not status.fullmatch(said)] == []
    for number, name, said in rows:
        newer = said.rpartition(" by ")[2]
        assert not newer.isdigit() or f"ADR {newer}" in (folder / name).read_text(), f"ADR {number} does not say so"


def test_every_lab_note_belongs_to_a_record_that_links_to_it() -> None:
    for note in (PROJECT / "docs" / "lab").glob("[0-9]*.md"):
        (record,) = (PROJECT / "docs" / "adr").glob(f"{note.stem}-*.md")
        assert f"(../lab/{note.name}" in record.read_text(), f"{record.name} does not link to its lab notes"


@pytest.mark.parametrize("page", ["tour.md", "architecture.md", "swap.md", "tables.md"])
def test_every_file_and_function_that_is_named_exists(page: str) -> None:
    """A path is that of a file of the project or below switchyard/; in a table row with a file, a function is in it."""
    text = FENCED.sub("", (PROJECT / "docs" / page).read_text())
    roots = (PROJECT, PROJECT / "switchyard")
    paths = {name: [root / name for root in roots if (root / name).is_file()] for name in re.findall(PATH, text)}
    assert [name for name, found in paths.items() if not found] == []
    everywhere = defined_names(
        path for folder in ("switchyard", "jobs", "dags") for path in PROJECT.glob(f"{folder}/**/*.py")
    )
    assert sorted(set(re.findall(FUNCTION, text)) - everywhere) == []
    for row in text.splitlines():
        here = [path for name in re.findall(PATH, row) for path in paths[name]] if row.startswith("|") else []
        assert not here or set(re.findall(FUNCTION, row)) <= defined_names(here), row


def defined_names(paths: Iterable[Path]) -> set[str]:
    found = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_relative_links_point_at_headings(page: Path) -> None:
    links = [target.partition("#") for target in LINK.findall(FENCED.sub("", page.read_text())) if "://" not in target]
    missing = [
        f"{file}#{heading}"
        for file, _, heading in links
        if heading and heading not in headings_of(page.parent / file if file else page)
    ]
    assert not missing, f"{page.name} links to headings that do not exist: {', '.join(missing)}"


def headings_of(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_fault_of_the_table_has_a_test_that_exists() -> None:
    text = (PROJECT / "docs" / "operations.md").read_text()
    section = text[text.index("## When something breaks") :].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    named = {row[0]: [name for name in re.findall(r"`([\w/.]+)`", row[-1]) if name != "faults"] for row in rows}
    untested = [fault for fault, row in zip(named, rows, strict=True) if "`" not in row[-1]]
    missing = [name for names in named.values() for name in names if not (PROJECT / "tests" / name).exists()]
    assert (untested, missing) == ([], [])
