"""An hour of the demo, then every join over all of it: a swap from `earliest`, one away, and back when it has retired.

`make hour`. The stack is the real one with the shipped settings, on separate ports and in a separate root; the demo
makes the records of its hour at once. Prints how long each command took and what the audit compared. Exits 1 when a
command was not applied or the audit is not clean.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from switchyard.kafka.topics import ensure_topics
from switchyard.layout import JOIN_TYPES
from switchyard.local import loopback
from switchyard.settings import Settings
from tests.integration.conftest import Stack
from tests.waiting import eventually

DEMO_RATE, HOUR_SECONDS = 20, 3600
AWAY = ("--users-topic", "users-quiet", "--accounts-topic", "accounts-quiet")
HOME = ("--users-topic", "users", "--accounts-topic", "accounts")
COMMAND_SECONDS = 600.0


class DefaultStack(Stack):
    """With nothing set but where it is."""

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")}
        places = {"root": self.settings.root} | {
            name: str(getattr(self.settings, name)) for name in ("airflow_port", "kafka_port")
        }
        return kept | {f"SWITCHYARD_{name.upper()}": value for name, value in places.items()}


@dataclass
class Hour:
    stack: Stack
    wrong: int = 0

    def go_through(self, join_type: str) -> None:
        """A swap to the whole history, one away from it, and the rollback to its generation, which is retired then."""
        self._command("swap", *HOME, "--join-type", join_type, "--start", "earliest")
        generation = self.stack.status()["generation"]
        self._audit(join_type)
        self._command("swap", *AWAY)
        eventually(lambda: self.stack.history.ledger().is_retired(generation), COMMAND_SECONDS, 0.5)
        self._command("rollback")
        if (active := self.stack.status()["generation"]) != generation:
            self._fail(f"generation {active} is active, not {generation}")
        self._audit(join_type)

    def _command(self, *arguments: str) -> None:
        began = time.monotonic()
        answer = self.stack.run(*arguments, "--wait", timeout_seconds=COMMAND_SECONDS)
        tell(f"{' '.join(arguments)}: {time.monotonic() - began:.0f} s, exit code {answer.returncode}")
        if answer.returncode:
            self._fail(answer.stdout + answer.stderr)

    def _audit(self, join_type: str) -> None:
        answer = self.stack.run("audit", "--json", timeout_seconds=COMMAND_SECONDS)
        if not answer.stdout:
            return self._fail(answer.stderr)
        found = json.loads(answer.stdout)
        compared = f"{found['rowsCompared']} rows, {found['missing']} missing, {found['extra']} extra"
        tell(f"{join_type}: the audit compared {compared}")
        if answer.returncode:
            self._fail(answer.stdout + answer.stderr)

    def _fail(self, text: str) -> None:
        self.wrong += 1
        tell(f"wrong: {text}")


def tell(text: str) -> None:
    sys.stdout.write(f"{datetime.now(UTC):%H:%M:%S}  {text}\n")
    sys.stdout.flush()


def must(stack: Stack, *arguments: str) -> None:
    answer = stack.run(*arguments, timeout_seconds=COMMAND_SECONDS)
    if answer.returncode:
        raise SystemExit(answer.stdout + answer.stderr)


def run(folder: Path, records: int, join_types: list[str]) -> int:
    ports = {name: loopback.pick_free_port() for name in ("airflow_port", "kafka_port")}
    stack = DefaultStack(Settings(root=str(folder / "root"), **ports))
    try:
        must(stack, "up", "--detach")
        ensure_topics(stack.kafka, AWAY[1::2])
        must(stack, "demo", "--records", str(records))
        tell(f"{records} records of the demo are in its topics")
        hour = Hour(stack)
        for join_type in join_types:
            hour.go_through(join_type)
        return 1 if hour.wrong else 0
    finally:
        stack.run("down")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=DEMO_RATE * HOUR_SECONDS, help="records of the demo")
    parser.add_argument("--joins", nargs="+", choices=JOIN_TYPES, default=list(JOIN_TYPES), help="which joins")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="switchyard-hour-"))
    status = run(folder, options.records, options.joins)
    if status == 0:
        shutil.rmtree(folder)
    else:
        tell(f"the root is kept in {folder}")
    return status


if __name__ == "__main__":
    sys.exit(main())
