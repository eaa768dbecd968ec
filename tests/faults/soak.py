"""Random swaps, kills and load for as long as one likes, then the reckoning. `make soak MINUTES=60 SEED=7`.

Everything that is done follows from the seed, which is printed. The stack is the real one, started by its own command
line, on separate ports and in a separate root. Exits 1 when an event was lost or is double, a command has no outcome,
or one of those on the way to the crowd and back, a history of few people with two million joined rows, was not
applied, or when a run of 20 minutes has not been there and back once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.stage import Filler
from switchyard.drivers import processes
from switchyard.errors import SwitchyardError
from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import ensure_topics
from switchyard.layout import JOIN_TYPES
from switchyard.local import loopback
from switchyard.settings import Settings
from switchyard.swap.history import SETTLING, Event
from tests.integration.conftest import Stack, frozen_database
from tests.integration.traffic import Traffic, running_traffic
from tests.waiting import eventually

CROWD = ("users-crowd", "accounts-crowd")
CROWD_PEOPLE, CROWD_RECORDS = 100, 28_000
"""Each has about 140 events on either side: two million pairs. Natural and asof choose among them."""
LEAST_CROWD_ROWS = {"left": 1_000_000, "inner": 1_000_000, "natural": 14_000, "asof": 14_000}
MANY_ROWS = 1_000_000
LONG_MINUTES = 20.0
"""In so long a run the crowd must have been visited."""
CALM_PAIRS = [("users-a", "accounts-a"), ("users-b", "accounts-b")]
PAIRS = [*CALM_PAIRS, CROWD]
PARTS = ("scheduler", "triggerer", "api-server", "dag-processor", "database")
PAUSE_SECONDS = (15.0, 60.0)
CALM_SECONDS = 400.0
COMMAND_SECONDS = 900.0
COMMANDS = ("swap", "send_nonsense", "roll_back", "visit_crowd")


@dataclass(frozen=True)
class ShippedStack(Stack):
    """With the heap that a user has: large histories must get along with it."""

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"SWITCHYARD_DRIVER_MEMORY": self.settings.driver_memory}


@dataclass
class Soak:
    stack: Stack
    draw: random.Random
    done: Counter[str] = field(default_factory=Counter)
    sent: list[str] = field(default_factory=list)
    """Ids of the commands that were sent"""
    drawn: int = 0
    """Ids that were given away, also to commands that did not get through"""
    audits: list[dict[str, Any]] = field(default_factory=list)
    visits: list[int] = field(default_factory=list)
    """How many rows were compared after each visit to the crowd that succeeded, to the crowd and back"""
    wrong: list[str] = field(default_factory=list)
    """What did not go as it must on the way to the crowd and back"""

    def step(self) -> None:
        actions: list[tuple[int, Callable[[], str]]] = [
            (8, self.swap),
            (2, self.send_nonsense),
            (2, self.roll_back),
            (1, self.visit_crowd),
            (3, self.kill_driver),
            (1, self.freeze_driver),
            (1, self.kill_broker),
            (1, self.freeze_broker),
            (3, self.kill_part),
            (1, self.lock_database),
        ]
        self.perform(self.draw.choices([act for _, act in actions], [weight for weight, _ in actions])[0])

    def perform(self, action: Callable[[], str]) -> None:
        try:
            said = action()
        except (SwitchyardError, OSError, AssertionError, subprocess.TimeoutExpired) as error:
            # What it was meant for may be away because of the fault before.
            said = f"not possible now: {type(error).__name__}: {error}"
            if action == self.visit_crowd:
                self.wrong.append(said)
        say(f"{action.__name__}: {said}")
        self.done[action.__name__] += 1

    def swap(self) -> str:
        users, accounts = self.draw.choice(PAIRS)
        start = self.draw.choice(["latest", "latest", "earliest", "resume"])
        fields = {"usersTopic": users, "accountsTopic": accounts, "joinType": self.draw.choice(JOIN_TYPES)}
        return self._send({**fields, "start": start})

    def send_nonsense(self) -> str:
        return self._send(self.draw.choice([{"usersTopic": "nobody-made-it"}, {"usersTopic": 7}, {"start": "soon"}]))

    def _send(self, fields: dict[str, object]) -> str:
        swap_id = self._draw_id()
        value = json.dumps({**fields, "id": swap_id}).encode()
        publish(self.stack.kafka, self.stack.settings.control_topic, value, "cli:soak")
        self.sent.append(swap_id)
        return value.decode()

    def _draw_id(self) -> str:
        self.drawn += 1
        return f"soak-{self.drawn}"

    def roll_back(self) -> str:
        name = self._draw_id()
        answer = self.stack.run("rollback", "--id", name)
        if answer.returncode == 0:
            self.sent.append(f"rollback-{name}")
        return (answer.stdout + answer.stderr).strip()

    def visit_crowd(self) -> str:
        """To the crowd from its first event, away, and back when it has retired. Nothing is broken on the way."""
        if not calm(self.stack, self):
            return "not possible now"
        # Until one has succeeded, each visit is to a million rows at least.
        join_type = self.draw.choice(JOIN_TYPES if count_large(self.visits) else ("left", "inner"))
        crowd = self._follow("swap", *_options(CROWD), "--join-type", join_type, "--start", "earliest")
        self._follow("swap", *_options(self.draw.choice(CALM_PAIRS)), "--start", "latest")
        eventually(lambda: self.stack.history.ledger().is_retired(crowd), CALM_SECONDS)
        back = self._follow("rollback")
        self.audits.append(audit := run_audit(self.stack))
        assert (back, audit["generation"]) == (crowd, crowd), f"{back} is not the generation of the crowd, {crowd}"
        assert audit["rowsCompared"] >= LEAST_CROWD_ROWS[join_type], f"only {audit['rowsCompared']} rows"
        self.visits.append(audit["rowsCompared"])
        return f"{join_type}, {audit['rowsCompared']} rows"

    def _follow(self, *arguments: str) -> int:
        """The generation to which a command has led; it must be applied."""
        name = self._draw_id()
        self.sent.append(f"rollback-{name}" if arguments[0] == "rollback" else name)
        answer = self.stack.run(*arguments, "--id", name, "--wait", "--json", timeout_seconds=COMMAND_SECONDS)
        assert answer.returncode == 0, f"{' '.join(arguments)}: {answer.stdout}{answer.stderr}"
        outcome = json.loads(answer.stdout)
        assert outcome["outcome"] == Event.APPLIED, f"{' '.join(arguments)}: {outcome}"
        say(f"    {' '.join(arguments)}: generation {outcome['generation']} after {outcome['seconds']} s")
        return int(outcome["generation"])

    def kill_driver(self) -> str:
        return self._signal_driver(signal.SIGKILL)

    def freeze_driver(self) -> str:
        """It is never woken: its task has to notice."""
        return self._signal_driver(signal.SIGSTOP)

    def _signal_driver(self, number: signal.Signals) -> str:
        found = sorted(self.stack.settings.workspace.run.glob("driver-*.pid"))
        if not found:
            return "no driver runs"
        chosen = self.draw.choice(found)
        with suppress(OSError, ValueError):
            session = processes.session_of(int(chosen.read_text()))
            processes.send(processes.find_members([session]) if session else [], number)
        return f"{number.name} to {chosen.stem}"

    def kill_broker(self) -> str:
        os.kill(self._broker_pid, signal.SIGKILL)
        return "the supervisor starts it again"

    def freeze_broker(self) -> str:
        seconds = self.draw.uniform(5, 60)
        pid = self._broker_pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return f"for {seconds:.0f} s"

    @property
    def _broker_pid(self) -> int:
        return int((self.stack.settings.workspace.broker / "broker.pid").read_text())

    def kill_part(self) -> str:
        part = self.draw.choice(PARTS)
        os.kill(self.stack.component_pid(part), signal.SIGKILL)
        return part

    def lock_database(self) -> str:
        seconds = self.draw.uniform(2, 20)
        with frozen_database(self.stack):
            time.sleep(seconds)
        return f"for {seconds:.0f} s"


def _options(pair: tuple[str, str]) -> list[str]:
    return ["--users-topic", pair[0], "--accounts-topic", pair[1]]


@dataclass
class StallWatch:
    """The longest time in which the active generation committed nothing, as a reader would notice it."""

    stack: Stack
    longest: float = 0.0

    def watch(self, stop: threading.Event) -> None:
        last, since = None, time.monotonic()
        while not stop.wait(1):
            with suppress(Exception):
                status = self.stack.status()
                mark = (status["generation"], status["batchId"])
                # The first generation of all has topics to which nobody sends.
                if mark != last or status["usersTopic"] not in dict(PAIRS):
                    last, since = mark, time.monotonic()
            self.longest = max(self.longest, time.monotonic() - since)


@contextmanager
def running_stack(folder: Path) -> Iterator[Stack]:
    settings = Settings(
        root=str(folder / "root"),
        airflow_port=loopback.pick_free_port(),
        kafka_port=loopback.pick_free_port(),
    )
    stack = ShippedStack(settings)
    started = stack.run("up", "--detach", "--no-demo", timeout_seconds=600)
    if started.returncode != 0:
        raise SystemExit(started.stdout + started.stderr)
    try:
        ensure_topics(stack.kafka, [topic for pair in PAIRS for topic in pair], 2)
        send_crowd(stack.settings.bootstrap)
        yield stack
    finally:
        stack.run("down")


def send_crowd(bootstrap: str) -> None:
    filler = Filler(bootstrap, *CROWD)
    filler.send(range(CROWD_PEOPLE), 0.5, CROWD_RECORDS)
    filler.flush()


def run(folder: Path, minutes: float, seed: int) -> dict[str, object]:
    with running_stack(folder) as stack:
        stop = threading.Event()
        stalls = StallWatch(stack)
        watcher = threading.Thread(target=stalls.watch, args=(stop,))
        watcher.start()
        try:
            with running_traffic(stack.settings.layout, stack.settings.bootstrap, PAIRS) as traffic:
                soak = Soak(stack, random.Random(seed))
                soak.perform(soak.visit_crowd)
                until = time.monotonic() + minutes * 60
                while time.monotonic() < until:
                    time.sleep(soak.draw.uniform(*PAUSE_SECONDS))
                    soak.step()
                    say(f"    {describe(stack, soak, traffic, stalls)}")
                say("no more faults")
                if judge_visits(soak.visits, minutes):
                    soak.perform(soak.visit_crowd)
                calm(stack, soak)
                return reckon(stack, soak, traffic, stalls, minutes)
        finally:
            stop.set()
            watcher.join()


def describe(stack: Stack, soak: Soak, traffic: Traffic, stalls: StallWatch) -> str:
    """How it stands, in one line."""
    try:
        status = stack.status()
    except Exception as error:
        return f"the status cannot be read: {type(error).__name__}"
    health = "healthy" if status["healthy"] else status["reason"]
    faults = sum(count for name, count in soak.done.items() if name not in COMMANDS)
    flips, events = len(stack.history.ledger().flips), len(traffic.delivered)
    return (
        f"generation {status['generation']}, {health}; {events} events, {flips} flips, {faults} faults, "
        f"longest stall {stalls.longest:.0f} s"
    )


def calm(stack: Stack, soak: Soak) -> bool:
    """Waits until every command is settled and the active generation is alive and has caught up."""
    say("waiting until all is settled")
    deadline = time.monotonic() + CALM_SECONDS
    while time.monotonic() < deadline:
        ledger = stack.history.ledger()
        with suppress(Exception):
            is_settled = not ledger.open_requests and all(name in ledger.outcomes for name in soak.sent)
            if is_settled and not ledger.lingering and stack.status()["healthy"]:
                return True
        time.sleep(2)
    say("it did not come to rest in time")
    return False


def run_audit(stack: Stack) -> dict[str, Any]:
    answer = stack.run("audit", "--json", timeout_seconds=COMMAND_SECONDS)
    assert answer.stdout, answer.stderr
    return dict(json.loads(answer.stdout))


def count_large(visits: Sequence[int]) -> int:
    return sum(rows >= MANY_ROWS for rows in visits)


def judge_visits(visits: Sequence[int], minutes: float) -> list[str]:
    """What is wrong with the visits that succeeded, given with their rows: a long run without any has proven little."""
    if minutes < LONG_MINUTES or count_large(visits):
        return []
    least = f"with {MANY_ROWS} joined rows"
    return [
        f"in {minutes:g} minutes no visit to the crowd {least} and back succeeded; with fewer rows {len(visits)} did"
    ]


def reckon(stack: Stack, soak: Soak, traffic: Traffic, stalls: StallWatch, minutes: float) -> dict[str, object]:
    ledger, until = stack.history.ledger(), datetime.now(UTC)
    status = stack.status()
    lost = [("?", 0, 0, until)]
    deadline = time.monotonic() + 120
    while lost and time.monotonic() < deadline:
        lost = traffic.find_lost(status["generation"], status["usersTopic"], until)
        time.sleep(2)
    audits = [*soak.audits, run_audit(stack)]
    outcomes = Counter(str(entry.event) for entry in ledger.outcomes.values())
    twice = [name for name, count in settled_counts(stack).items() if count > 1]
    return {
        "eventsSent": len(traffic.delivered),
        "commands": len(soak.sent),
        "outcomes": dict(outcomes),
        "swaps": outcomes[str(Event.APPLIED)],
        "faults": {name: count for name, count in soak.done.items() if name not in COMMANDS},
        "lost": len(lost) + sum(audit.get("missing", -1) for audit in audits),
        "double": sum(audit.get("extra", -1) + audit.get("unaccounted", -1) for audit in audits),
        "rowsCompared": [audit.get("rowsCompared", 0) for audit in audits],
        "crowdVisits": {
            "tried": soak.done["visit_crowd"],
            "succeeded": len(soak.visits),
            "withAMillionRows": count_large(soak.visits),
        },
        "wrong": soak.wrong + judge_visits(soak.visits, minutes),
        "unsettled": [name for name in soak.sent if name not in ledger.outcomes],
        "settledTwice": twice,
        "readErrors": [len(traffic.read_errors), *traffic.read_errors[:3]],
        "longestStallSeconds": round(stalls.longest, 1),
    }


def settled_counts(stack: Stack) -> Counter[str]:
    return Counter(entry.swapId for entry in stack.history.ledger().entries if entry.event in SETTLING)


def say(line: str) -> None:
    sys.stdout.write(f"{datetime.now(UTC):%H:%M:%S}  {line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="the same seed does the same; drawn when left out")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    say(f"seed {seed}, {options.minutes:g} minutes")
    folder = Path(tempfile.mkdtemp(prefix="switchyard-soak-"))
    result = run(folder, options.minutes, seed)
    for name, value in result.items():
        say(f"{name:20} {value}")
    is_right = not any(result[name] for name in ("lost", "double", "wrong", "unsettled", "settledTwice"))
    if is_right:
        shutil.rmtree(folder)
    else:
        say(f"something is wrong; all is kept in {folder}")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
