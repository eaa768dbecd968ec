"""Find the Java that Spark and the broker run on.

Only the standard library: set-up calls this before any package is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from switchyard.errors import SwitchyardError

SUPPORTED_VERSIONS = (17, 21)
HOW_TO_INSTALL = "install it (Debian, Ubuntu: openjdk-17-jre-headless; macOS: brew install openjdk@17)"
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')


@dataclass(frozen=True)
class JavaHome:
    path: Path
    version: int

    @property
    def executable(self) -> Path:
        return self.path / "bin" / "java"


def find_java(candidates: Iterable[Path] | None = None) -> JavaHome:
    """Return the first Java of a supported version."""
    unsuitable: list[JavaHome] = []
    for home in _unique(find_candidates() if candidates is None else candidates):
        version = read_version(home)
        if version in SUPPORTED_VERSIONS:
            return JavaHome(home, version)
        if version is not None:
            unsuitable.append(JavaHome(home, version))
    raise SwitchyardError(_describe_missing(unsuitable))


def find_candidates() -> Iterator[Path]:
    if configured := os.environ.get("JAVA_HOME"):
        yield Path(configured)
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent
    yield from sorted(Path("/usr/lib/jvm").glob("*"))
    yield from _ask_macos()


def read_version(home: Path) -> int | None:
    """Return the major version."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        text = ""
    # The file first: starting a JVM takes 100 ms.
    match = _VERSION.search(text) or _VERSION.search(_ask_version(home))
    return int(match.group(1)) if match else None


def _ask_version(home: Path) -> str:
    try:
        answer = subprocess.run([str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr


def _ask_macos() -> Iterator[Path]:
    chooser = Path("/usr/libexec/java_home")
    if not chooser.exists():
        return
    for version in SUPPORTED_VERSIONS:
        answer = subprocess.run([str(chooser), "-v", str(version)], capture_output=True, text=True)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())


def _unique(homes: Iterable[Path]) -> Iterator[Path]:
    seen = set()
    for home in homes:
        real = home.resolve()
        if real not in seen:
            seen.add(real)
            yield home


def _describe_missing(unsuitable: list[JavaHome]) -> str:
    found = ", ".join(f"Java {java.version} in {java.path}" for java in unsuitable) or "none"
    return f"Java 17 or 21 is needed and {found} was found: {HOW_TO_INSTALL} or set JAVA_HOME."
