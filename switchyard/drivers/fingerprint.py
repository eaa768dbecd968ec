"""Hash what a driver is started with, part by part: a spare is outdated if a part differs from that of a new driver."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from switchyard.drivers.java import find_java
from switchyard.layout import PROJECT
from switchyard.settings import Settings


def fingerprint_driver(
    settings: Settings, master: str, conf: Mapping[str, str], token_url: str, project: Path = PROJECT
) -> dict[str, str]:
    named = [Path(text) for value in conf.values() for text in value.replace("=", ":").replace(",", ":").split(":")]
    # Jars and class archive count by size and time: a new one may get the same name.
    files = [path for path in named if path.is_absolute() and path.is_file()]
    parts = {
        "settings": settings.model_dump_json(),
        "Spark settings": repr([master, *sorted(conf.items())]),
        "jars": _describe_files(files),
        "Java and Python": f"{find_java()} {sys.executable} {sys.version}",
        "code": _describe_files([*_list_code(project), project / "requirements.txt"]),
        "token address": token_url,
    }
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in parts.items()}


def _list_code(project: Path) -> list[Path]:
    found = [path for folder in ("switchyard", "jobs") for path in (project / folder).rglob("*")]
    return [path for path in found if path.suffix in (".py", ".properties")]


def _describe_files(paths: Iterable[Path]) -> str:
    found = []
    for path in sorted(set(paths)):
        try:
            stat = path.stat()
        except OSError:
            continue
        found.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(found)
