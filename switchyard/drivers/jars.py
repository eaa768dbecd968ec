"""Fetch the jars of Spark's connectors and of the broker, once, into the project's cache.

Only the standard library. Apache Ivy, which pyspark brings, fetches, so that only Java is needed; jars.lock has the
checksum of every file. Run as a module to fetch; `--lock` rewrites the lock.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from switchyard.drivers import ivy
from switchyard.drivers.java import find_java
from switchyard.errors import SwitchyardError
from switchyard.layout import PROJECT
from switchyard.object_store import is_on_object_store

LOCK = Path(__file__).with_name("jars.lock")
GROUPS = tuple(ivy.GROUPS)
OPTIONAL = frozenset({"s3"})
"""Fetched only where the root is on an object store, and where it is asked for."""
RUN_SETUP = "run make setup"
RELOCK = "if that is meant, run python -m switchyard.drivers.jars --lock"


@dataclass(frozen=True, order=True)
class LockedJar:
    group: str
    name: str
    sha256: str


def cache_dir() -> Path:
    return Path(os.environ.get("SWITCHYARD_CACHE") or PROJECT / ".cache").absolute()


def spark_jars() -> list[Path]:
    """Return the jars that every job needs: Spark's connector to Kafka."""
    return _list_jars("spark")


def delta_jars() -> list[Path]:
    """Return the jars of Spark's Delta, for jobs that run its commands; the stream does without them."""
    return _list_jars("delta")


def broker_jars() -> list[Path]:
    return _list_jars("broker")


def object_store_jars() -> list[Path]:
    """Return the jars by which Spark reads an object store; needed only if the root is on one."""
    return _list_jars("s3")


def wanted_groups(cache: Path, asked: Collection[str] = ()) -> list[str]:
    """Return what this clone needs; optional groups if asked for, now or earlier, or if its root needs them."""
    is_needed = is_on_object_store(os.environ.get("SWITCHYARD_ROOT", ""))
    there = {group for group in OPTIONAL if (cache / "jars" / group).is_dir()}
    return [group for group in GROUPS if group not in OPTIONAL or is_needed or group in {*asked, *there}]


def ensure_jars(cache: Path | None = None, asked: Collection[str] = ()) -> bool:
    """Fetch and verify every wanted jar, unless that was done before; return whether something was fetched."""
    cache = cache or cache_dir()
    groups = wanted_groups(cache, asked)
    if is_complete(cache, asked):
        return False
    with _fetched(cache, groups) as folder:
        verify(folder, [jar for jar in read_lock() if jar.group in groups])
        _write_verified(folder)
        _put_in_place(folder, cache / "jars")
    return True


def is_complete(cache: Path, asked: Collection[str] = ()) -> bool:
    """Return whether the jars were verified against this lock, and all are there with the same sizes."""
    jars, groups = cache / "jars", wanted_groups(cache, asked)
    try:
        verified = json.loads((jars / "verified.json").read_text())
        wanted = {f"{jar.group}/{jar.name}" for jar in read_lock() if jar.group in groups}
        return bool(verified["lock"] == _digest(LOCK) and wanted <= verified["sizes"].keys()) and all(
            (jars / name).stat().st_size == size for name, size in verified["sizes"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def verify(folder: Path, locked: list[LockedJar]) -> None:
    """Raise unless the folder holds exactly the locked jars, byte for byte."""
    found = {(jar.group, jar.name): jar.sha256 for jar in describe(folder)}
    wanted = {(jar.group, jar.name): jar.sha256 for jar in locked}
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise SwitchyardError(f"{'/'.join(key)} {_explain(found.get(key), wanted.get(key))}")


def describe(folder: Path) -> list[LockedJar]:
    return sorted(
        LockedJar(group, path.name, _digest(path)) for group in GROUPS for path in (folder / group).glob("*.jar")
    )


def read_lock() -> list[LockedJar]:
    rows = (line.split() for line in LOCK.read_text().splitlines() if line and not line.startswith("#"))
    return [LockedJar(group, name, sha256) for sha256, group, name in rows]


def write_lock(cache: Path) -> None:
    """Write the checksums of what the repository serves now. After a version has changed, review the diff."""
    with _fetched(cache, GROUPS) as folder:
        lines = [f"{jar.sha256}  {jar.group}  {jar.name}" for jar in describe(folder)]
    first = "# sha256, group, file; written by: python -m switchyard.drivers.jars --lock"
    LOCK.write_text("\n".join([first, *lines, ""]))


@contextmanager
def _fetched(cache: Path, groups: Collection[str]) -> Iterator[Path]:
    """Fetch jars into a temporary folder in the cache: a fetch that fails leaves nothing behind."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jars-", dir=cache, ignore_cleanup_errors=True) as name:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda group: _fetch(group, Path(name), cache), groups))
        yield Path(name) / "jars"


def _fetch(group: str, folder: Path, cache: Path) -> None:
    # A cache for each group, as Ivy does not lock it and several groups are fetched at once.
    command = ivy.write_request(group, folder, cache / "ivy" / group, _ivy_jar(), find_java().executable)
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        raise SwitchyardError(ivy.explain_failure(answer.stdout + answer.stderr))


def _put_in_place(folder: Path, target: Path) -> None:
    # Moved, as a rename cannot replace a folder that is not empty.
    if target.exists():
        target.rename(folder.parent / "replaced")
    folder.rename(target)


def _write_verified(folder: Path) -> None:
    sizes = {f"{jar.parent.name}/{jar.name}": jar.stat().st_size for jar in folder.glob("*/*.jar")}
    (folder / "verified.json").write_text(json.dumps({"lock": _digest(LOCK), "sizes": sizes}))


def _list_jars(group: str) -> list[Path]:
    jars = [cache_dir() / "jars" / group / jar.name for jar in read_lock() if jar.group == group]
    missing = [jar.name for jar in jars if not jar.exists()]
    if missing:
        raise SwitchyardError(f"{len(missing)} of the {group} jars are missing ({missing[0]}): {RUN_SETUP}.")
    return jars


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for jar in sorted(Path(folder).glob("jars/ivy-*.jar")):
            return jar
    raise SwitchyardError(f"pyspark, which brings the jar fetcher, is not installed: {RUN_SETUP}.")


def _explain(found: str | None, wanted: str | None) -> str:
    if found is None:
        return f"is in jars.lock but was not fetched: {RELOCK}."
    if wanted is None:
        return f"was fetched but is not in jars.lock: {RELOCK}."
    return f"does not have the checksum in jars.lock (sha256 {found[:12]}…, expected {wanted[:12]}…): not used."


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m switchyard.drivers.jars", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="rewrite jars.lock from what is served now")
    parser.add_argument(
        "--with", dest="asked", action="append", choices=sorted(OPTIONAL), default=[], help="also these"
    )
    options = parser.parse_args()
    try:
        if options.lock:
            write_lock(cache_dir())
        else:
            ensure_jars(asked=options.asked)
    except SwitchyardError as error:
        print(f"switchyard: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"switchyard: {error.strerror or error}: {error.filename or cache_dir()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
