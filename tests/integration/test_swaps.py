"""Swaps on the real stack, while events flow and a reader reads. The tests share the stack, in order.

After each test the reader must have had no error and must have seen one change for each flip, no event of the active
generation may be missing, and the oracle must agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from switchyard.cli.main import main
from switchyard.drivers import processes
from switchyard.health.accounting import account_for_commands
from switchyard.kafka.control_topic import publish
from switchyard.kafka.topics import ensure_topics
from switchyard.stream.audit import audit_at_newest
from switchyard.swap.history import SETTLING, Event, Ledger
from switchyard.tables import store
from switchyard.tables.progress import newest_progress
from switchyard.upkeep.maintenance import ORDER, Round, vacuum
from tests.events import FIRST_MS
from tests.integration.conftest import DAG_ID, HEALTH_DAG, Stack, frozen_database
from tests.integration.faults import catch_watcher, is_fired, kill_part
from tests.integration.traffic import Traffic, running_traffic
from tests.topics import Topics
from tests.waiting import eventually

PAIRS = [("users", "accounts"), ("users-a", "accounts-a"), ("users-b", "accounts-b")]


CROWD = ("users-crowd", "accounts-crowd")
CROWD_ROWS = 1_000_006
MAINTENANCE_DAG = "switchyard_maintenance"
CONTROL_DAG = "switchyard_control"
MOST_TRIES = 3
"""A test that has to come between two steps of another process tries again when it was too late"""
AUDITED: set[tuple[int, int]] = set()
"""Epoch and attempt of the active generation when it was last audited"""


@pytest.fixture(scope="module", autouse=True)
def no_health_checks(stack: Stack) -> Iterator[None]:
    """`test_health.py` has turned them on, and what comes after this file has them."""
    stack.api.set_paused(HEALTH_DAG, True)
    yield
    stack.api.set_paused(HEALTH_DAG, False)


@pytest.fixture(scope="module", autouse=True)
def traffic(stack: Stack) -> Iterator[Traffic]:
    ensure_topics(stack.kafka, [name for pair in PAIRS for name in pair], 2)
    with running_traffic(stack.settings.layout, stack.settings.bootstrap, PAIRS) as traffic:
        yield traffic


@pytest.fixture(autouse=True)
def nothing_is_lost(stack: Stack, traffic: Traffic, spark: SparkSession) -> Iterator[None]:
    """Asked after every test, whatever happened in it."""
    began, reads, seen = datetime.now(UTC), traffic.reads, len(traffic.generations_read)
    yield
    eventually(lambda: ledger_of(stack).pending is None, 150, 1)
    eventually(lambda: stack.status()["healthy"], 120, 1)
    status = stack.status()
    active = status["generation"]
    eventually(lambda: traffic.generations_read[-1] == active, 30)
    assert traffic.reads > reads
    assert traffic.read_errors == []
    assert traffic.generations_read[max(0, seen - 1) :] == traffic.flips_since(began)
    until = datetime.now(UTC)
    eventually(lambda: traffic.find_lost(active, status["usersTopic"], until) == [], 60, 1)
    assert_history_is_sound(ledger_of(stack))
    if (status["epoch"], status["attempt"]) not in AUDITED:
        # An audit looks at all rows of a generation: of tests that leave it alone, the last one's would say the same.
        AUDITED.add((status["epoch"], status["attempt"]))
        audit = audit_at_newest(lambda: spark, stack.settings)
        assert (audit.generation, audit.missing, audit.extra, audit.unaccounted) == (active, 0, 0, 0), audit
        assert audit.rowsCompared > 0


def assert_history_is_sound(ledger: Ledger) -> None:
    settled = [entry.swapId for entry in ledger.entries if entry.event in SETTLING]
    assert len(settled) == len(set(settled))
    assert {request.swapId for request in ledger.requests} <= set(settled)


def ledger_of(stack: Stack) -> Ledger:
    return stack.history.ledger()


def send(stack: Stack, swap_id: str | None = None, **fields: object) -> int:
    """Returns the offset of the message; the control topic has one partition here."""
    value = json.dumps({**fields, **({"id": swap_id} if swap_id else {})}).encode()
    return publish(stack.kafka, stack.settings.control_topic, value, "cli:test")[1]


def outcome_of(stack: Stack, swap_id: str, seconds: float = 240) -> Event:
    eventually(lambda: swap_id in ledger_of(stack).outcomes, seconds, 0.5)
    return ledger_of(stack).outcomes[swap_id].event


def wait_for(stack: Stack, swap_id: str, event: Event, seconds: float = 120) -> int:
    """Waits until a swap has come so far, and returns its generation."""
    eventually(lambda: ledger_of(stack).has(swap_id, event), seconds, 0.2)
    request = ledger_of(stack).find(swap_id)
    assert request is not None
    return request.generation


def driver_pid(stack: Stack, generation: int) -> int:
    path = stack.settings.workspace.driver_pid(generation)
    return int(eventually(lambda: path.exists() and path.read_text(), 60))


def rows_left(stack: Stack, generation: int) -> int:
    tables = ("users", "accounts", "joined", "rejects")
    return sum(store.read_arrow(stack.settings.layout, name, generation=generation).num_rows for name in tables)


def assert_removed(stack: Stack, generation: int) -> None:
    eventually(lambda: ledger_of(stack).is_retired(generation), 60)
    assert rows_left(stack, generation) == 0
    assert not Path(stack.settings.layout.checkpoint(generation)).exists()


def test_maintenance_and_a_swap_while_500_events_a_second_flow(stack: Stack) -> None:
    """The DAG compacts what the streams are writing, and a vacuum that spares half a minute runs over and over.

    First of the file: there are few generations to compact yet.
    """
    before = stack.status()
    join_type = "natural" if before["joinType"] != "natural" else "left"
    tasks = (*ORDER, "report")
    pair = (before["usersTopic"], before["accountsTopic"])
    layout, bootstrap = stack.settings.layout, stack.settings.bootstrap
    with running_traffic(layout, bootstrap, [pair], with_reader=False, burst=50), vacuuming(stack) as deleted:
        eventually(lambda: stack.status()["rowsPerSecond"] > 300, 60, 1)
        stack.api.trigger(MAINTENANCE_DAG, "by-hand", {})
        eventually(lambda: stack.task_state(MAINTENANCE_DAG, "by-hand", "compact") == "running", 60, 0.5)
        send(stack, "in-maintenance", joinType=join_type)
        assert outcome_of(stack, "in-maintenance") is Event.APPLIED
        eventually(lambda: stack.api.run_state(MAINTENANCE_DAG, "by-hand") in ("success", "failed"), 240, 1)
        eventually(lambda: deleted, 90, 1)
    states = {task: stack.task_state(MAINTENANCE_DAG, "by-hand", task) for task in tasks}
    assert states == dict.fromkeys(tasks, "success")
    last = newest_progress(stack.settings.layout, before["generation"])
    assert last is not None
    assert (last.attempt, stack.status()["attempt"]) == (before["attempt"], 1)
    told = [row["msg"] for row in stack.json("logs", "--limit", "1000") if row["msg"].startswith("maintenance: ")]
    became = re.match(r"maintenance: (\d+) files became (\d+)", told[-1])
    assert became is not None
    assert int(became[1]) > 20 + int(became[2])


@contextlib.contextmanager
def vacuuming(stack: Stack) -> Iterator[list[str]]:
    """Over and over; gives the names of the tables that lost files by it."""
    stop, errors = threading.Event(), []
    deleted: list[str] = []

    def work() -> None:
        while not stop.wait(2):
            try:
                done = vacuum(stack.settings, Round(datetime.now(UTC), timedelta(seconds=30)))
            except Exception as error:
                errors.append(repr(error))
            else:
                deleted.extend(table["table"] for table in done["tables"] if table["files"])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield deleted
    finally:
        stop.set()
        thread.join(60)
    assert errors == []


def test_swap_of_topics_and_join_is_followed_to_its_flip(stack: Stack) -> None:
    before = stack.status()["generation"]
    answer = stack.run(
        *("swap", "--users-topic", "users-a", "--accounts-topic", "accounts-a"),
        *("--join-type", "inner", "--id", "to-a", "--wait"),
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    for word in ("REQUESTED", "STARTING", "READY", "APPLIED"):
        assert word in answer.stdout
    status = stack.status()
    assert (status["usersTopic"], status["accountsTopic"], status["joinType"]) == ("users-a", "accounts-a", "inner")
    assert status["generation"] > before
    run_id = f"generation-{status['generation']}"
    assert stack.task_state(DAG_ID, run_id, "stream") == "running"
    assert "to-a" in stack.run_note(DAG_ID, run_id)
    eventually(lambda: ledger_of(stack).is_retired(before), 60)
    told = [row["msg"] for row in stack.json("logs", "--limit", "1000") if row["swapId"] == "to-a"]
    words = ("received", "resolved to", "building", "is starting", "is ready", "flipped")
    assert [line for word in words for line in told if word in line] == told


def test_the_same_again_is_refreshed_and_restarts_nothing(stack: Stack) -> None:
    before = stack.status()
    answer = stack.run("swap", "--users-topic", " users-a ", "--join-type", "INNER", "--wait")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "REFRESHED" in answer.stdout
    after = stack.status()
    assert after["lastApplied"] > before["lastApplied"]
    same = ("generation", "epoch", "attempt", "usersTopic")
    assert [after[name] for name in same] == [before[name] for name in same]
    again = stack.run("swap", "--join-type", "left", "--id", "to-a", "--wait")
    assert (again.returncode, "APPLIED" in again.stdout) == (0, True)
    assert stack.status()["joinType"] == "inner"


BAD_VALUES: dict[str, tuple[bytes | None, str]] = {
    "not JSON": (b"{nonsense", "not JSON"),
    "not an object": (b"[1]", "must be a JSON object"),
    "no value": (None, "no value"),
    "wrong type": (b'{"usersTopic": 7}', "usersTopic must be a text"),
    "bad name": (b'{"usersTopic": "a b"}', "is not a topic name"),
    "unknown topic": (b'{"accountsTopic": "nobody-made-it"}', "does not exist"),
    "control itself": (b'{"usersTopic": "control"}', "is the control topic"),
    "the same twice": (b'{"usersTopic": "users-b", "accountsTopic": "users-b"}', "cannot both come from"),
    "bad start": (b'{"usersTopic": "users-b", "start": "soon"}', "none of latest, earliest"),
    "too big": (b'{"usersTopic": "' + b"x" * 70_000 + b'"}', "at most 65536"),
}


def test_each_bad_message_is_rejected_with_its_reason_and_changes_nothing(stack: Stack) -> None:
    before = stack.status()
    known = len(ledger_of(stack).entries)
    for value, _ in BAD_VALUES.values():
        publish(stack.kafka, stack.settings.control_topic, value, "cli:test")
    eventually(lambda: len(ledger_of(stack).entries) == known + len(BAD_VALUES), 90, 0.5)
    fresh = ledger_of(stack).entries[known:]
    assert [entry.event for entry in fresh] == [Event.REJECTED] * len(BAD_VALUES)
    for entry, (name, (_, reason)) in zip(fresh, BAD_VALUES.items(), strict=True):
        assert reason in entry.detail, name
    after = stack.status()
    assert [after[name] for name in ("generation", "epoch", "lastApplied")] == [
        before[name] for name in ("generation", "epoch", "lastApplied")
    ]
    kept = store.read_rows(stack.settings.layout, "control_raw")
    assert "{nonsense" in {row["value"] for row in kept}
    assert len(kept) == len({(row["partition"], row["offset"]) for row in kept})
    answer = stack.run("swap", "--users-topic", "nobody-made-it", "--wait")
    assert (answer.returncode, "does not exist" in answer.stdout) == (2, True)


def test_a_plan_says_what_would_happen_and_changes_nothing(stack: Stack) -> None:
    before = stack.status()
    plan = stack.json("plan", "--users-topic", "users-b", "--accounts-topic", "accounts-b", "--start", "earliest")
    assert (plan["outcome"], plan["plan"]["would"]) == ("PLANNED", "swap")
    assert (plan["plan"]["usersPartitions"], plan["plan"]["accountsPartitions"]) == (2, 2)
    assert plan["plan"]["records"] > 0
    assert plan["plan"]["estimateSeconds"] > 0
    assert stack.run("plan", "--users-topic", "nobody-made-it").returncode == 2
    assert stack.status()["epoch"] == before["epoch"]
    assert ledger_of(stack).pending is None


def test_join_type_alone_and_back_at_once_while_the_old_one_lingers(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    before = stack.status()
    send(stack, "join-only", joinType="asof")
    assert outcome_of(stack, "join-only") is Event.APPLIED
    status = stack.status()
    assert (status["usersTopic"], status["joinType"]) == ("users-a", "asof")
    # In this process: on a busy machine another one might have started when the old one has retired.
    assert main(["rollback", "--wait", "--id", "first"]) == 0
    back = stack.status()
    assert (back["generation"], back["attempt"], back["joinType"]) == (before["generation"], before["attempt"], "inner")
    ready = [entry.detail for entry in ledger_of(stack).entries if entry.swapId == "rollback-first"]
    assert "it was still running" in ready
    eventually(lambda: ledger_of(stack).is_retired(status["generation"]), 60)


def test_of_a_burst_the_last_wins_and_all_fields_count(stack: Stack) -> None:
    send(stack, "burst-1", usersTopic="users-b")
    send(stack, "burst-2", usersTopic="no-such-topic")
    send(stack, "burst-3", accountsTopic="accounts-b", joinType="natural")
    send(stack, "burst-1", usersTopic="users")
    send(stack, "burst-4", joinType="left")
    assert outcome_of(stack, "burst-4") is Event.APPLIED
    outcomes = ledger_of(stack).outcomes
    assert outcomes["burst-2"].event is Event.REJECTED
    for name in ("burst-1", "burst-3"):
        assert outcomes[name].event is Event.SUPERSEDED
        assert "burst-" in outcomes[name].detail
    status = stack.status()
    assert (status["usersTopic"], status["accountsTopic"], status["joinType"]) == ("users-b", "accounts-b", "left")


def test_a_command_while_a_swap_is_pending_supersedes_it_and_one_during_linger_is_the_next_swap(stack: Stack) -> None:
    send(stack, "slow", joinType="inner")
    slow = wait_for(stack, "slow", Event.STARTING)
    send(stack, "quick", usersTopic="users-a", accountsTopic="accounts-a")
    assert outcome_of(stack, "slow") is Event.SUPERSEDED
    assert "quick" in ledger_of(stack).outcomes["slow"].detail
    assert outcome_of(stack, "quick") is Event.APPLIED
    assert ledger_of(stack).lingering
    send(stack, "next", joinType="left")
    assert outcome_of(stack, "next") is Event.APPLIED
    assert stack.run("swap", "--id", "slow", "--wait").returncode == 4
    eventually(lambda: stack.task_state(DAG_ID, f"generation-{slow}", "stream") == "skipped", 60, 1)
    assert_removed(stack, slow)
    status = stack.status()
    assert (status["usersTopic"], status["joinType"]) == ("users-a", "left")


def send_crowd(stack: Stack) -> None:
    """14,000 events of 49 people: few records with very many pairs."""
    crowd = Topics(stack.settings.bootstrap, *CROWD)
    crowd.create(2)
    sides = ("user", "account")
    crowd.send((sides[n % 2], n // 2 % 2, FIRST_MS + n, {"userId": f"one-of-{n // 2 % 49}"}) for n in range(14_000))


def test_back_to_topics_of_before_resumes_their_checkpoint_and_rows(stack: Stack, spark: SparkSession) -> None:
    """A→B→A by a rollback when A has retired, and the same way to B, which has a million joined rows."""
    first = stack.status()["generation"]
    send_crowd(stack)
    users, accounts = CROWD
    send(stack, "away", usersTopic=users, accountsTopic=accounts, joinType="inner", start="earliest")
    assert outcome_of(stack, "away") is Event.APPLIED
    away = stack.status()["generation"]
    audit = audit_at_newest(lambda: spark, stack.settings)
    assert (audit.generation, audit.missing, audit.extra, audit.unaccounted) == (away, 0, 0, 0), audit
    assert audit.rowsCompared == CROWD_ROWS
    eventually(lambda: ledger_of(stack).is_retired(first), 60)
    rows = store.read_arrow(stack.settings.layout, "users", generation=first).num_rows
    answer = stack.run("rollback", "--wait", "--id", "resumed")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert stack.status()["generation"] == first
    assert store.read_arrow(stack.settings.layout, "users", generation=first).num_rows > rows
    assert stack.api.run_state(DAG_ID, f"generation-{first}.2") == "running"
    eventually(lambda: ledger_of(stack).is_retired(away), 60)
    answer = stack.run("rollback", "--wait", "--id", "to-the-crowd")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert stack.status()["generation"] == away
    told = [entry for entry in ledger_of(stack).entries if entry.swapId == "rollback-to-the-crowd"]
    proof = next(entry.detail for entry in told if entry.event is Event.READY)
    assert re.fullmatch(r"\d+ joined rows of \d+ events, a sample of 14000 records, equal the batch join", proof)
    # The one before still lingers, so this way back takes no time.
    assert stack.run("rollback", "--wait", "--id", "from-the-crowd").returncode == 0
    eventually(lambda: ledger_of(stack).is_retired(away), 60)


def test_a_driver_killed_before_the_flip_is_a_failed_swap_and_a_new_command_is_taken_meanwhile(stack: Stack) -> None:
    before = stack.status()
    send(stack, "killed", joinType="natural")
    killed = wait_for(stack, "killed", Event.STARTING)
    os.kill(driver_pid(stack, killed), signal.SIGKILL)
    assert outcome_of(stack, "killed") is Event.FAILED
    assert "exit code" in ledger_of(stack).outcomes["killed"].detail
    after = stack.status()
    assert (after["generation"], after["attempt"]) == (before["generation"], before["attempt"])
    assert_removed(stack, killed)
    answer = stack.run("swap", "--id", "killed", "--wait")
    assert answer.returncode == 3, "the same id is the same command"


def test_a_topic_deleted_while_its_generation_starts_fails_the_swap(stack: Stack) -> None:
    before = stack.status()["generation"]
    admin = AdminClient(stack.kafka)
    ensure_topics(stack.kafka, ["users-doomed"], 1)
    send(stack, "doomed", usersTopic="users-doomed")
    doomed = wait_for(stack, "doomed", Event.REQUESTED)
    admin.delete_topics(["users-doomed"])["users-doomed"].result(30)
    assert outcome_of(stack, "doomed") is Event.FAILED
    assert_removed(stack, doomed)
    assert stack.status()["generation"] == before


def test_an_old_driver_that_hangs_is_retired_by_others_and_cannot_write_when_it_wakes(stack: Stack) -> None:
    old = stack.status()["generation"]
    pid = driver_pid(stack, old)
    send(stack, "over-a-hung-one", joinType="asof")
    wait_for(stack, "over-a-hung-one", Event.STARTING)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert outcome_of(stack, "over-a-hung-one") is Event.APPLIED
        eventually(lambda: ledger_of(stack).is_retired(old), 90, 0.5)
        rows = rows_left(stack, old)
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), 60)
    assert rows_left(stack, old) == rows


def test_a_new_generation_that_dies_after_its_flip_and_stays_dead_is_undone(stack: Stack) -> None:
    before = stack.status()
    send(stack, "short-lived", joinType="inner")
    assert outcome_of(stack, "short-lived") is Event.APPLIED
    lived = stack.status()["generation"]
    # It cannot be started again: its checkpoint is not there any more.
    checkpoint = Path(stack.settings.layout.checkpoint(lived))
    checkpoint.rename(checkpoint.with_name("stolen"))
    checkpoint.write_text("not a folder")
    os.kill(driver_pid(stack, lived), signal.SIGKILL)
    try:
        assert outcome_of(stack, "undo-short-lived") is Event.APPLIED
        undone = next(entry for entry in ledger_of(stack).entries if entry.swapId == "undo-short-lived")
        assert (undone.requestedBy, "was not heard of" in undone.detail) == ("probation", True)
        after = stack.status()
        assert (after["generation"], after["attempt"]) == (before["generation"], before["attempt"])
    finally:
        checkpoint.unlink()
        checkpoint.with_name("stolen").rename(checkpoint)
    eventually(lambda: ledger_of(stack).is_retired(lived), 120, 1)
    shutil.rmtree(checkpoint)


def test_a_new_generation_killed_after_its_flip_comes_back_by_itself(stack: Stack) -> None:
    send(stack, "revived", joinType="natural")
    assert outcome_of(stack, "revived") is Event.APPLIED
    revived = stack.status()["generation"]
    eventually(lambda: not ledger_of(stack).lingering, 60)
    attempt = stack.status()["attempt"]
    os.kill(driver_pid(stack, revived), signal.SIGKILL)
    eventually(lambda: (now := stack.status())["healthy"] and now["attempt"] > attempt, 120, 1)
    assert stack.status()["generation"] == revived
    told = [row["msg"] for row in store.read_rows(stack.settings.layout, "logs") if row["generation"] == revived]
    assert any("was killed (exit code" in line for line in told)


# A scheduler that has lost its database hangs for 45 s, unless the next test kills it.
@pytest.mark.parametrize("part", ["database", "scheduler", "api-server"])
def test_a_part_of_airflow_killed_in_the_middle_of_a_swap(stack: Stack, part: str) -> None:
    join_type = other_join_types(stack)[0]
    send(stack, f"without-{part}", joinType=join_type)
    wait_for(stack, f"without-{part}", Event.REQUESTED)
    kill_part(stack, part)
    if part == "api-server":
        hold_the_database(stack, 10)
    if part == "database":
        # And again while the new driver starts.
        wait_for(stack, f"without-{part}", Event.STARTING)
        kill_part(stack, part)
    assert_applied_and_well(stack, f"without-{part}", join_type, [part])
    assert events_of(stack, f"without-{part}").count(Event.REQUESTED) == 1


def other_join_types(stack: Stack) -> list[str]:
    return [name for name in ("natural", "left", "asof") if name != stack.status()["joinType"]]


def assert_applied_and_well(stack: Stack, swap_id: str, join_type: str, parts: list[str]) -> None:
    """The swap went on, and the next command is taken by parts that are there again."""
    assert outcome_of(stack, swap_id) is Event.APPLIED
    assert_well(stack, swap_id, join_type, parts)


def assert_well(stack: Stack, swap_id: str, join_type: str, parts: list[str]) -> None:
    assert stack.status()["joinType"] == join_type
    eventually(lambda: all(part_is_healthy(stack, name) for name in parts), 90, 1)
    send(stack, f"after-{swap_id}", joinType=join_type)
    assert outcome_of(stack, f"after-{swap_id}", 120) is Event.REFRESHED
    accounted = account_for_commands(stack.settings, stack.kafka)
    assert accounted.is_clean, accounted


def test_the_triggerer_killed_when_it_has_accepted_a_command_and_not_yet_fired_its_event(stack: Stack) -> None:
    assert any(kill_the_triggerer(stack, f"unfired-{number}") for number in range(MOST_TRIES)), "it was always faster"


def kill_the_triggerer(stack: Stack, swap_id: str) -> bool:
    """Returns whether its event had not been fired. Nothing waits for the DAG processor, so it is killed with it."""
    join_type = other_join_types(stack)[0]
    kill_part(stack, "dag-processor")
    caught = catch_watcher(stack, signal.SIGKILL, lambda: send(stack, swap_id, joinType=join_type), swap_id)
    assert_applied_and_well(stack, swap_id, join_type, ["triggerer", "dag-processor"])
    assert events_of(stack, swap_id).count(Event.REQUESTED) == 1
    return not caught.was_fired


def test_a_round_and_the_watcher_have_the_same_commands_at_once(stack: Stack) -> None:
    assert any(take_twice(stack, f"both-{number}") for number in range(MOST_TRIES)), "the watcher was always faster"


def take_twice(stack: Stack, name: str) -> bool:
    """The watcher is frozen when it has read three messages and accepted the first. A round takes all three; then the
    watcher goes on with what it holds. Returns whether that is what happened."""
    ids = [f"{name}-{number}" for number in range(3)]
    active = stack.status()["joinType"]
    # The last one asks for what is active, so that this is not a whole swap.
    contents = [
        {"joinType": other_join_types(stack)[0]},
        {"usersTopic": "nobody-made-it"},
        {"joinType": active},
    ]
    caught = catch_watcher(stack, signal.SIGSTOP, lambda: send_at_once(stack, ids, contents), ids[0])
    was_between = not ledger_of(stack).is_known(ids[1])
    try:
        stack.api.trigger(CONTROL_DAG, name, {})
        eventually(lambda: ledger_of(stack).is_known(ids[2]), 60)
    finally:
        processes.send(caught.triggerer, signal.SIGCONT)
    eventually(lambda: is_fired(stack, caught.offset), 60)
    outcomes = [outcome_of(stack, swap_id) for swap_id in ids]
    assert outcomes == [Event.SUPERSEDED, Event.REJECTED, Event.REFRESHED]
    assert [events_of(stack, swap_id).count(Event.REQUESTED) for swap_id in ids[:2]] == [1, 0]
    assert_well(stack, ids[2], active, ["triggerer"])
    return was_between


def send_at_once(stack: Stack, ids: list[str], contents: list[dict[str, str]]) -> int:
    """Sends all in one batch, so that who reads one has the others; returns the offset of the last one."""
    producer = Producer(stack.kafka | {"linger.ms": "200"})
    offsets: list[int] = []
    for swap_id, content in zip(ids, contents, strict=True):
        value = json.dumps({**content, "id": swap_id}).encode()
        topic = stack.settings.control_topic
        producer.produce(topic, value, on_delivery=lambda _, message: offsets.append(message.offset()))
    assert producer.flush(30) == 0
    return max(offsets)


def events_of(stack: Stack, swap_id: str) -> list[Event]:
    return [entry.event for entry in ledger_of(stack).entries if entry.swapId == swap_id]


def hold_the_database(stack: Stack, seconds: float) -> None:
    """Nobody can read or write Airflow's metadata meanwhile."""
    with frozen_database(stack):
        time.sleep(seconds)


def part_is_healthy(stack: Stack, part: str) -> bool:
    names = {"api-server": "metadatabase", "database": "metadatabase", "dag-processor": "dag_processor"}
    return names.get(part, part) in stack.api.healthy_parts()


def test_a_manual_run_is_a_swap_like_any_other(stack: Stack) -> None:
    stack.api.trigger(DAG_ID, "by-hand", {"users_topic": "users-b", "accounts_topic": "accounts-b"})
    assert outcome_of(stack, "run:by-hand") is Event.APPLIED
    status = stack.status()
    assert status["usersTopic"] == "users-b"
    assert stack.task_state(DAG_ID, "by-hand", "stream") == "running"
    asked = next(entry for entry in ledger_of(stack).entries if entry.swapId == "run:by-hand")
    assert asked.requestedBy == "airflow:admin"
    stack.api.trigger(DAG_ID, "by-hand-again", {"users_topic": "users-b"})
    assert outcome_of(stack, "run:by-hand-again") is Event.REFRESHED
    eventually(lambda: stack.api.run_state(DAG_ID, "by-hand-again") == "success", 60, 1)
    stack.api.trigger(DAG_ID, "by-hand-bad", {"users_topic": "no-such-topic"})
    assert outcome_of(stack, "run:by-hand-bad") is Event.REJECTED
    eventually(lambda: stack.api.run_state(DAG_ID, "by-hand-bad") == "failed", 60, 1)


def test_rollback_from_airflow(stack: Stack) -> None:
    before = stack.status()["generation"]
    stack.api.trigger("switchyard_rollback", "regret", {"reason": "a test"})
    assert outcome_of(stack, "rollback-regret") is Event.APPLIED
    assert stack.status()["generation"] != before
    assert newest_progress(stack.settings.layout, stack.status()["generation"]) is not None
