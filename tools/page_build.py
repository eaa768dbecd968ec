"""Build the page from its lock file with the Node that is in .venv. Only when its source has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tools.steps import run_step

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "switchyard" / "web" / "page"
BUILT = PROJECT / "switchyard" / "web" / "static"
STAMP = BUILT / "source.sha256"


def is_current() -> bool:
    return (BUILT / "index.html").exists() and STAMP.exists() and STAMP.read_text() == digest_source()


def digest_source() -> str:
    digest = hashlib.sha256()
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "node_modules" not in path.parts]
    for path in sorted(files):
        digest.update(str(path.relative_to(SOURCE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build(binaries: Path, log: Path) -> None:
    """`npm ci` installs exactly what the lock file names; scripts of packages are not run."""
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"}
    npm: list[str | Path] = [binaries / "npm", "--prefix", SOURCE]
    shutil.rmtree(BUILT, ignore_errors=True)
    run_step("fetching the libraries of the page", [*npm, "ci", "--no-progress"], log, environment)
    run_step("building the page", [*npm, "run", "build"], log, environment)
    STAMP.write_text(digest_source())
