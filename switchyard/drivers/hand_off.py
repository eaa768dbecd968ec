"""Hand over a spare driver to a generation, by the files of one folder.

| step | done by | as |
|---|---|---|
| offer | the spare, when it is warm | writes `offer.json` |
| claim | the task that takes it | renames `offer.json` to `claimed.json` |
| order | the same task | writes `order.json` |
| accept | the spare | renames `order.json` to `accepted.json` |
| withdraw | the task, after no answer | renames `order.json` to `withdrawn.json` |
| adopt | the task that follows the driver to its end | makes the folder `followed` |

A rename succeeds for one process only: of two tasks one gets the spare, and an order is carried out or withdrawn, never
both. A process that dies between two steps leaves files that say how far it came.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from switchyard.drivers.processes import boot_id
from switchyard.drivers.spares import Offer, Order
from switchyard.layout import Workspace

_FINGERPRINT = TypeAdapter(dict[str, str])


def describe_place() -> str:
    """Name this machine or container, and its boot."""
    return f"{socket.gethostname()} {boot_id()}"


@dataclass(frozen=True)
class HandOff:
    folder: Path

    @classmethod
    def create(cls, workspace: Workspace, fingerprint: Mapping[str, str]) -> HandOff:
        workspace.spares.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = cls(Path(tempfile.mkdtemp(prefix="spare-", dir=workspace.spares)))
        made._write("fingerprint.json", _FINGERPRINT.dump_json(dict(fingerprint)))
        return made

    @property
    def pulse(self) -> Path:
        """A file with the pid of the spare, which touches it as long as it waits."""
        return self.folder / "spare.pid"

    @property
    def is_claimed(self) -> bool:
        return (self.folder / "claimed.json").exists()

    @property
    def claimed_seconds(self) -> float | None:
        """How long ago it was claimed."""
        with suppress(FileNotFoundError):
            # A rename changes the `ctime` of a file.
            return _age((self.folder / "claimed.json").stat().st_ctime)
        return None

    @property
    def silence_seconds(self) -> float:
        """How long ago the spare touched its pid file; 0 before it has one."""
        with suppress(FileNotFoundError):
            return _age(self.pulse.stat().st_mtime)
        return 0.0

    def read_fingerprint(self) -> dict[str, str]:
        return _FINGERPRINT.validate_json((self.folder / "fingerprint.json").read_bytes())

    def offer(self, offer: Offer) -> None:
        self._write("offer.json", offer.model_dump_json().encode())

    def read_offer(self) -> Offer | None:
        """Return the offer, until it is claimed."""
        return self._read_offer("offer.json")

    def claim(self) -> bool:
        """Take the spare; return False if another process was faster."""
        return self._move("offer.json", "claimed.json")

    def read_claim(self) -> Offer | None:
        """Return the offer after it was claimed."""
        return self._read_offer("claimed.json")

    def _read_offer(self, name: str) -> Offer | None:
        with suppress(FileNotFoundError, ValidationError):
            return Offer.model_validate_json((self.folder / name).read_bytes())
        return None

    @property
    def is_followed(self) -> bool:
        return (self.folder / "followed").exists()

    def adopt(self) -> bool:
        """Become the task that follows the driver to its end; return True only to the first caller."""
        try:
            (self.folder / "followed").mkdir()
        except OSError:
            return False
        return True

    def give(self, order: Order) -> None:
        """Write the order, after a successful `claim`."""
        self._write("order.json", order.model_dump_json().encode())

    def accept(self) -> Order | None:
        """Return the order, once; None before it is given and after it was withdrawn."""
        return self.read_order() if self._move("order.json", "accepted.json") else None

    def withdraw(self) -> bool:
        """Take the order back; return False if the spare has accepted it."""
        return self._move("order.json", "withdrawn.json")

    def read_order(self) -> Order | None:
        """Return the order that the spare has accepted."""
        with suppress(FileNotFoundError):
            return Order.model_validate_json((self.folder / "accepted.json").read_bytes())
        return None

    @property
    def accepted_seconds(self) -> float | None:
        """How long ago the accepted order was given."""
        with suppress(FileNotFoundError):
            return _age((self.folder / "accepted.json").stat().st_mtime)
        return None

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold a lock while the task runs, so that the spare notices its end."""
        # The kernel releases it however the task ends.
        with (self.folder / "owner.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def is_orphaned(self) -> bool:
        """Return whether the task that started the spare is gone."""
        try:
            with (self.folder / "owner.lock").open() as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
        except BlockingIOError:
            return False
        except OSError:
            return True

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, name: str, content: bytes) -> None:
        draft = self.folder / f"{name}.{os.getpid()}"
        draft.write_bytes(content)
        draft.rename(self.folder / name)

    def _move(self, name: str, to: str) -> bool:
        try:
            (self.folder / name).rename(self.folder / to)
        except FileNotFoundError:
            return False
        return True


def _age(moment: float) -> float:
    return max(0.0, time.time() - moment)


def list_hand_offs(workspace: Workspace) -> list[HandOff]:
    if not workspace.spares.exists():
        return []
    return [HandOff(path) for path in sorted(workspace.spares.iterdir()) if path.is_dir()]
