"""A person is forgotten on real topics: while the stream stands still, by frames as by Arrow, in a running driver."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from switchyard.cli.main import main
from switchyard.layout import BIG_TABLES, SMALL_TABLES, Layout
from switchyard.settings import Settings
from switchyard.stream.audit import audit_at_newest, record_audit
from switchyard.stream.forgotten_frames import skip_forgotten_rows
from switchyard.stream.gate import examine
from switchyard.tables import store
from switchyard.tables.forgetting import REASON, skip_forgotten
from switchyard.tables.forgotten import add_mark, read_marks
from switchyard.tables.joined_changes import BATCH_SCHEMA
from switchyard.tables.stable_names import newest_rows
from tests.events import FIRST_MS, draw_events
from tests.model import sort_rows
from tests.second_oracle import join_with_duckdb, read_joined
from tests.stream.driver import running_driver
from tests.stream.running import Stream
from tests.topics import Topics
from tests.waiting import eventually

X, FAILED = "person-1", 1


@pytest.fixture
def command(layout: Layout, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line works on the same root and broker."""
    monkeypatch.setenv("SWITCHYARD_ROOT", layout.root)
    monkeypatch.setenv("SWITCHYARD_KAFKA_BOOTSTRAP", topics.bootstrap)


def offsets_of(layout: Layout, name: str, user_id: str) -> list[tuple[int, int]]:
    rows = store.read_rows(layout, name)
    return sorted((row["partition"], row["offset"]) for row in rows if row["userId"] == user_id)


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(("join_type", "small"), [("left", 100_000), ("natural", 0)], ids=["small", "bulk"])
def test_the_stream_goes_on_without_a_forgotten_person(
    spark: SparkSession, layout: Layout, topics: Topics, join_type: str, small: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream.prepare(spark, layout, topics, join_type, small_batch_records=small)
    events = draw_events(seed=21, count=240, people=6)
    topics.send(events[:100])
    topics.send_raw(topics.users, [b'{"userId": "person-1", "age": "a lot", "email": "x@example.org"}'])
    stream.run_attempt()
    topics.send(events[100:120])
    before = {name: offsets_of(layout, name, X) for name in ("users", "accounts")}
    assert all(before.values())

    assert main(["forget", "--user-id", X, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["mark"], said["generations"]) == (1, {"1": "done"})
    assert said["found"]["users"] == len(before["users"])
    assert said["found"]["rejects"] == 1
    assert [
        row for name in ("users", "accounts", "joined") for row in store.read_rows(layout, name) if X in row.values()
    ] == []
    assert stream.audit().is_clean

    topics.send(events[120:])
    stream.run_attempt()
    audit = stream.audit()
    assert (audit.missing, audit.extra, audit.unaccounted) == (0, 0, 0), audit
    assert read_joined(layout) == join_with_duckdb(layout, join_type)
    bounds = json.loads(store.read_rows(layout, "forgotten")[0]["upTo"])
    for name, topic in (("users", topics.users), ("accounts", topics.accounts)):
        after = offsets_of(layout, name, X)
        assert after
        assert all(offset >= bounds[topic][str(partition)] for partition, offset in after)
    values = [row["value"] for row in store.read_rows(layout, "rejects")]
    assert values == [None] * len(values)

    again = Stream.prepare(spark, layout, topics, "inner", generation=2, small_batch_records=small)
    again.run_attempt()
    assert again.audit().is_clean
    verdict = examine(spark, layout, again.spec, topics.kafka, 100_000)
    assert verdict.is_clean, verdict
    for name in ("users", "accounts"):
        rows = store.read_rows(layout, name, generation=2)
        assert sorted((r["partition"], r["offset"]) for r in rows if r["userId"] == X) == offsets_of_one(layout, name)


def offsets_of_one(layout: Layout, name: str) -> list[tuple[int, int]]:
    rows = store.read_rows(layout, name, generation=1)
    return sorted((row["partition"], row["offset"]) for row in rows if row["userId"] == X)


def test_frames_and_arrow_skip_the_same_rows(spark: SparkSession, layout: Layout, topics: Topics) -> None:
    stream = Stream.prepare(spark, layout, topics, "left")
    ends = {topics.users: {0: 2, 1: 0}, topics.accounts: {0: 1, 1: 5}}
    for person in ("a", "é☃"):
        add_mark(layout, person, ends, {}, "test")
    marks = read_marks(layout)
    sides = [("user", 0, 1), ("user", 0, 2), ("user", 1, 0), ("account", 0, 0), ("account", 1, 4), ("account", 1, 5)]
    rows = [
        {"kind": kind, "userId": person, f"{side}Partition": partition, f"{side}Offset": offset, "value": value}
        for person in ("a", "b", "é☃", None)
        for side, partition, offset in sides
        for kind, value in ((side, None), ("reject", "raw"))
    ]
    pairs = [
        {
            "kind": "pair",
            "userId": person,
            "userPartition": 0,
            "userOffset": user,
            "accountPartition": 1,
            "accountOffset": account,
        }
        for person in ("a", "b")
        for user in (1, 2)
        for account in (4, 5)
    ]
    table = pa.Table.from_pylist([*rows, *pairs], schema=BATCH_SCHEMA)
    by_arrow = skip_forgotten(table, marks, stream.spec).to_pylist()
    by_frames = skip_forgotten_rows(spark.createDataFrame(table), marks, stream.spec).toArrow().to_pylist()
    assert sort_rows(by_frames) == sort_rows(by_arrow)
    assert sum(row["reason"] == REASON for row in by_arrow) == 2 * 2 * 3
    assert sum(row["kind"] == "pair" for row in by_arrow) == 4 + 1


CANARY, NAME = "canary.4711@example.org", "Canarinia Quux"


def all_bytes(*folders: Path) -> bytes:
    return b"".join(path.read_bytes() for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.usefixtures("command")
def test_a_running_driver_forgets_and_logs_no_value(
    spark: SparkSession, layout: Layout, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(root=layout.root)
    topics.send([("user", 0, FIRST_MS, {"userId": "canary", "name": NAME, "email": CANARY, "age": 3})])
    topics.send([("account", 0, FIRST_MS, {"userId": "canary", "accountType": "gold", "balance": 1.5})])
    bad = [{"userId": "canary", "email": CANARY, "age": NAME}, {"email": CANARY}, [CANARY], CANARY]
    values = [json.dumps(value).encode() for value in bad]
    values += [b'{"email": "' + CANARY.encode(), b"\xff" + CANARY.encode(), b'"' + CANARY.encode() * 40_000 + b'"']
    topics.send_raw(topics.users, values)
    topics.send_raw(topics.accounts, values)
    count = 2 + 2 * len(values)
    with running_driver(settings, topics, tmp_path, crash=f"leak:{NAME} again") as driver:
        eventually(lambda: driver.has_read(count))
        eventually(lambda: newest_rows(layout, "final_ui", 10))
        assert main(["forget", "--user-id", "canary"]) == 0
        assert "What remains" in capsys.readouterr().out
        assert newest_rows(layout, "final_ui", 10) == newest_rows(layout, "users_ui", 10) == []
        topics.send([("user", 1, FIRST_MS, {"userId": "canary", "name": "back", "email": CANARY})])
        eventually(lambda: driver.has_read(count + 1))
        eventually(lambda: [row["name"] for row in newest_rows(layout, "final_ui", 10)] == ["back"])
        topics.send([("user", 1, FIRST_MS, {"userId": "other", "name": f"{NAME} again", "email": CANARY})])
        assert driver.wait() == FAILED, driver.tail()
    reason = (
        "the stream has stopped: batch 2 failed: ArrowInvalid: Failed to parse string: '...' as a scalar of type int64"
    )
    assert f"ERROR switchyard.driver {reason}; the log of the task `stream` has the details\n" in driver.log.read_text()
    audit = audit_at_newest(lambda: spark, settings, 1)
    assert audit.is_clean, audit
    record_audit(layout, audit)
    small = [Path(layout.table(name)) for name in SMALL_TABLES if store.has_table(layout, name)]
    assert {path.name for path in small} >= {"logs", "swap_history", "progress", "audits", "forgotten"}
    written = all_bytes(*small) + driver.log.read_bytes()
    for secret in (CANARY, NAME):
        assert secret.encode() not in written
        assert secret.encode() in all_bytes(*[Path(layout.table(name)) for name in BIG_TABLES])
