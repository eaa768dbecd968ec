"""Write docs/modules.md, the map of switchyard/ by layer, or check that it is current: `write` or `check`.

The order is that of the layers contract in pyproject.toml; the words are the docstrings of the modules. Standard
library only.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "modules.md"
HEAD = """\
# Modules

Every file of `switchyard/`, from the top layer down: a folder imports only what stands below it. Generated from the
docstrings by `make modules`; change those, not this page. [A tour](tour.md) shows which of them matter first,
[CONTRIBUTING](../CONTRIBUTING.md#import-rules) has the import rules.
"""
FOUNDATION = "The foundation: files at the root of the package, which every layer may import."
_SENTENCE = re.compile(r"(.+?\.)(?= [A-Z`]|$)")


def main(arguments: list[str]) -> int:
    if arguments not in (["check"], ["write"]):
        print("usage: tools/module_map.py check|write", file=sys.stderr)
        return 2
    page = make_page(PROJECT)
    if arguments == ["write"]:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        print("modules: docs/modules.md is not what the docstrings say: run make modules.", file=sys.stderr)
        return 1
    return 0


def make_page(project: Path) -> str:
    package = project / "switchyard"
    folders = [name for name in read_layers(project) if (package / name).is_dir()]
    parts = [HEAD]
    for name in folders:
        about = read_docstring(package / name / "__init__.py")
        parts.append(f"## {name}/\n\n{about}\n\n{make_table(package / name, list_modules(package / name))}\n")
    parts.append(f"## The root\n\n{FOUNDATION}\n\n{make_table(package, list_modules(package))}\n")
    return "\n".join(parts)


def read_layers(project: Path) -> list[str]:
    """Return the layers from the top down, as the contract names them; siblings stand in one line of it."""
    contracts = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [name.strip() for layer in layers for name in layer.split("|")]


def list_modules(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py")


def make_table(folder: Path, modules: Iterable[Path]) -> str:
    rows = [f"| `{path.relative_to(folder)}` | {summarise(read_docstring(path))} |" for path in modules]
    return "\n".join(["| file | for |", "|---|---|", *rows])


def read_docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or "(no docstring)"


def summarise(docstring: str) -> str:
    """Return the first sentence, in one line that fits the cell of a table."""
    text = " ".join(docstring.split("\n\n")[0].split()).replace("|", r"\|")
    ended = _SENTENCE.match(text)
    return ended.group(1) if ended else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
