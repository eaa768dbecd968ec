"""Compile the pinned requirements, or check that they are what compiling would give: `compile` or `check`.

Written without a header and without an index, so that no path or registry of one machine gets in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
# In this order: the development list is constrained by the other.
NAMES = ("requirements", "requirements-dev")
OPTIONS = ("--universal", "--python-version", "3.11", "--no-header", "--quiet")
OVERRIDES = ("--override", "requirements-overrides.txt")


def main(arguments: list[str]) -> int:
    if arguments not in (["check"], ["compile"]):
        print("usage: tools/requirements.py check|compile", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _copy_inputs(folder)
        for stem in NAMES:
            if not _compile(folder, stem, upgrade=arguments == ["compile"]):
                return 1
        return _check(folder) if arguments == ["check"] else _take_over(folder)


def _copy_inputs(folder: Path) -> None:
    """With the committed results: uv keeps the versions it finds there, so that only real drift shows."""
    for path in PROJECT.glob("requirements*"):
        shutil.copy(path, folder)


def _compile(folder: Path, stem: str, upgrade: bool) -> bool:
    uv = shutil.which("uv", path=os.pathsep.join([str(PROJECT / ".venv" / "bin"), os.environ.get("PATH", "")]))
    if uv is None:
        print("requirements: uv is missing: run make setup.", file=sys.stderr)
        return False
    extra = ("--upgrade",) if upgrade and os.environ.get("UPGRADE") else ()
    command = [uv, "pip", "compile", *OPTIONS, *OVERRIDES, *extra, f"{stem}.in", "-o", f"{stem}.txt"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if answer.returncode != 0:
        print(f"requirements: {stem}.in cannot be compiled:\n{answer.stderr}", file=sys.stderr)
    return answer.returncode == 0


def _check(folder: Path) -> int:
    drifted = [f"{stem}.txt" for stem in NAMES if _read(folder, stem) != _read(PROJECT, stem)]
    for name in drifted:
        print(
            f"requirements: {name} is not what its .in file compiles to: run make requirements.",
            file=sys.stderr,
        )
    return 1 if drifted else 0


def _take_over(folder: Path) -> int:
    for stem in NAMES:
        shutil.copy(folder / f"{stem}.txt", PROJECT)
    return 0


def _read(folder: Path, stem: str) -> str:
    return (folder / f"{stem}.txt").read_text()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
