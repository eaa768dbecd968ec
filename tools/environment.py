"""The project's environment: Java, .venv with the pinned packages and the project itself, the jars,
the page, and the class archive of the driver.

Only the standard library. A stamp inside .venv says what it was made from, so that a set-up with nothing to
do ends at once and needs no network.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from switchyard.drivers import class_archive, jars
from switchyard.errors import SwitchyardError
from tools import page_build
from tools.java_package import ensure_java
from tools.steps import run_step

PROJECT = Path(__file__).resolve().parents[1]
VENV = PROJECT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "switchyard.json"
RUNTIME, DEVELOPMENT = PROJECT / "requirements.txt", PROJECT / "requirements-dev.txt"
NEEDED_GIGABYTES = 3


@dataclass(frozen=True)
class Stamp:
    """Digests of what the environment was made from; empty when that part was not installed."""

    runtime: str = ""
    development: str = ""


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/setup.py", description="Makes this clone ready to run.")
    parser.add_argument("--dev", action="store_true", help="also install what tests and checks need")
    try:
        prepare(parser.parse_args(arguments).dev)
    except SwitchyardError as error:
        return _fail(str(error), 1)
    except OSError as error:
        return _fail(f"{error.strerror or error}: {error.filename or PROJECT}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted; run it again to continue.", 130)
    return 0


def _fail(sentence: str, status: int) -> int:
    print(f"set-up: {sentence}", file=sys.stderr)
    return status


def prepare(dev: bool) -> None:
    log = jars.cache_dir() / "setup.log"
    with _one_at_a_time():
        ensure_java(log)
        if not is_current(read_stamp(), dev):
            _require_space()
            _install_packages(dev or bool(read_stamp().development), log)
        asked = jars.OPTIONAL if dev else ()
        if not jars.is_complete(jars.cache_dir(), asked):
            command = [str(PYTHON), "-m", "switchyard.drivers.jars", *(f"--with={group}" for group in asked)]
            run_step("fetching the jars of Spark, Delta and Kafka", command, log)
        if not page_build.is_current():
            _build_page(log)
        if not class_archive.is_current():
            _make_archive(log)


def _build_page(log: Path) -> None:
    """All but the page works without it, and it says how to build it, so a failure here is no reason to stop."""
    try:
        page_build.build(VENV / "bin", log)
    except SwitchyardError as error:
        print(f"set-up: going on without the page: {error}", file=sys.stderr)


def _make_archive(log: Path) -> None:
    # Drivers start without it too, only later: a failure is printed and no reason to stop.
    try:
        run_step("writing the class archive of the driver", [PYTHON, "-m", "switchyard.local.make_class_archive"], log)
    except SwitchyardError as error:
        print(f"set-up: going on without it, drivers will start more slowly: {error}", file=sys.stderr)


def is_current(stamp: Stamp, dev: bool) -> bool:
    wanted = describe_wanted(dev)
    complete = PYTHON.exists() and (VENV / "bin" / "switchyard").exists()
    return complete and stamp.runtime == wanted.runtime and (not dev or stamp.development == wanted.development)


def describe_wanted(dev: bool) -> Stamp:
    python = ".".join(map(str, sys.version_info[:3]))
    runtime = _digest(RUNTIME.read_text(), (PROJECT / "pyproject.toml").read_text(), python, str(PROJECT))
    return Stamp(runtime, _digest(DEVELOPMENT.read_text()) if dev else "")


def read_stamp() -> Stamp:
    try:
        return Stamp(**json.loads(STAMP.read_text()))
    except (OSError, ValueError, TypeError):
        return Stamp()


def _install_packages(dev: bool, log: Path) -> None:
    STAMP.unlink(missing_ok=True)
    uv = _ensure_venv(log)
    lists = [RUNTIME, DEVELOPMENT] if dev else [RUNTIME]
    count = sum(_count_packages(path) for path in lists)
    pip = [uv, "pip"]
    sync = [*pip, "sync", "--python", PYTHON, "--compile-bytecode", *lists]
    run_step(f"installing {count} packages", sync, log, _uv_environment())
    own = [
        *pip,
        "install",
        "--python",
        PYTHON,
        "--offline",
        "--no-deps",
        "--no-build-isolation",
        "-e",
        PROJECT,
    ]
    run_step("installing switchyard itself", own, log, _uv_environment())
    STAMP.write_text(json.dumps(asdict(describe_wanted(dev))))


def _ensure_venv(log: Path) -> str | Path:
    """Make .venv for this Python unless it is there, and return the uv to fill it with."""
    _remove_venv_of_other_python()
    uv = shutil.which("uv")
    base = getattr(sys, "_base_executable", sys.executable)
    if uv is None and importlib.util.find_spec("ensurepip") is None:
        raise SwitchyardError("this Python cannot make an environment: install python3-venv (Debian, Ubuntu) or uv.")
    if not PYTHON.exists():
        command = [uv, "venv", "--python", base, VENV] if uv else [base, "-m", "venv", VENV]
        run_step(f"creating .venv with Python {sys.version_info.major}.{sys.version_info.minor}", command, log)
    if uv is not None:
        return uv
    if not (VENV / "bin" / "uv").exists():
        run_step("installing uv", [PYTHON, "-m", "pip", "install", f"uv=={_pinned('uv')}"], log)
    return VENV / "bin" / "uv"


def _remove_venv_of_other_python() -> None:
    """Remove a .venv that was left half-made or was made with another Python, so that it is made again."""
    if not VENV.exists():
        return
    config = VENV / "pyvenv.cfg"
    if not config.exists() and any(VENV.iterdir()):
        raise SwitchyardError(f"{VENV} is not an environment: move it away and run it again.")
    version = ".".join(map(str, sys.version_info[:3]))
    made_with = re.search(r"^version(?:_info)? *= *(\S+)", config.read_text(), re.M) if config.exists() else None
    if made_with is None or made_with.group(1) != version or not PYTHON.exists():
        shutil.rmtree(VENV)


def _uv_environment() -> dict[str, str]:
    """Where pip was pointed at another index, uv is too."""
    environment = dict(os.environ)
    if "PIP_INDEX_URL" in environment and not {"UV_INDEX_URL", "UV_DEFAULT_INDEX"} & environment.keys():
        environment["UV_DEFAULT_INDEX"] = environment["PIP_INDEX_URL"]
    return environment


def _require_space() -> None:
    free = shutil.disk_usage(PROJECT).free / 1e9
    if free < NEEDED_GIGABYTES:
        raise SwitchyardError(
            f"the disk has {free:.1f} GB free and set-up needs {NEEDED_GIGABYTES} GB: free some space."
        )


def _pinned(package: str) -> str:
    match = re.search(rf"^{package}==([^\s;]+)", RUNTIME.read_text(), re.M)
    if match is None:
        raise SwitchyardError(f"{package} is not pinned in {RUNTIME.name}: run make requirements.")
    return match.group(1)


def _count_packages(requirements: Path) -> int:
    return sum("==" in line for line in requirements.read_text().splitlines())


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two commands started together in one clone must not fill one .venv at the same time."""
    path = jars.cache_dir() / "setup.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
