"""Tables on an object store: what clients are told, and the promises of the tables kept in a bucket of a real server.

The tests that are taken over from other files run here a second time, with a root in a bucket.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from switchyard.cli.main import main
from switchyard.errors import InputError, SwitchyardError
from switchyard.layout import Layout, Workspace
from switchyard.object_store import ObjectStore, delta_options, explain_failure, hadoop_conf, to_hadoop
from switchyard.policies import Target
from switchyard.settings import Settings, load_settings
from switchyard.stream.offset_log import read_batch_end
from switchyard.stream.session import session_conf
from switchyard.swap.generations import adopt_draft, keep_draft, load_spec, remove_checkpoint
from switchyard.swap.history import StatusRow
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import root_check, store
from switchyard.tables.folders import Folder
from switchyard.tables.reader import Reader
from switchyard.tables.removal import remove_generation_rows
from switchyard.tables.root_check import prove_commits
from switchyard.upkeep.vacuum import vacuum_table
from tests.histories import set_row
from tests.object_stores import BUCKET, LOGIN, RunningStore, take_versions
from tests.specs import make_spec
from tests.unit.swap.test_history_store import (
    race,
    test_of_a_flip_and_its_withdrawal_exactly_one_happens,
)
from tests.unit.tables.test_reader import (
    joined_rows,
    offsets,
    reader,
    test_a_later_version_reads_only_its_new_files,
    test_after_a_flip_the_same_name_reads_the_other_generation,
    test_rows_that_were_revised_or_moved_are_shown_once,
    test_small_tables_are_followed_too,
    test_the_first_page_has_the_newest_rows_whole,
)
from tests.unit.upkeep.generations import (
    TableWriterSet,
)

__all__ = [
    "reader",
    "test_a_later_version_reads_only_its_new_files",
    "test_after_a_flip_the_same_name_reads_the_other_generation",
    "test_of_a_flip_and_its_withdrawal_exactly_one_happens",
    "test_rows_that_were_revised_or_moved_are_shown_once",
    "test_small_tables_are_followed_too",
    "test_the_first_page_has_the_newest_rows_whole",
]

AWS = ObjectStore(None, "eu-central-1")
NEAR = ObjectStore("http://127.0.0.1:8333", "us-east-1")


@pytest.fixture
def layout(bucket: Layout) -> Layout:
    return bucket


@pytest.mark.parametrize("root", ["s3://bucket", "s3://my.bucket-1/a/b=c", "/data", ".switchyard", "file:///data"])
def test_a_root_that_can_be_one(root: str) -> None:
    assert Settings(root=root).root == root


@pytest.mark.parametrize(
    ("root", "sentence"),
    [
        ("s3a://bucket/path", "write s3:// here"),
        ("s3://key:secret@bucket/path", "without a login"),
        ("s3://bucket/path?region=x", "without a login, a port or a query"),
        ("s3://Bucket/path", "s3://bucket/path"),
        ("s3://", "s3://bucket/path"),
    ],
)
def test_a_root_that_cannot_be_one_is_refused(root: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHYARD_ROOT", root)
    with pytest.raises(InputError, match=sentence) as refused:
        load_settings()
    assert "key:secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "store"),
    [
        ({"AWS_REGION": "eu-central-1"}, AWS),
        ({"AWS_DEFAULT_REGION": "eu-central-1", "AWS_ENDPOINT_URL": ""}, AWS),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:8333/"}, NEAR),
        ({"AWS_ENDPOINT_URL": "http://other", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:8333"}, NEAR),
    ],
)
def test_the_store_is_named_as_other_programs_of_amazon_name_it(
    environment: Mapping[str, str], store: ObjectStore
) -> None:
    assert ObjectStore.of(environment) == store


@pytest.mark.parametrize("store", [AWS, NEAR])
def test_every_commit_is_conditional(store: ObjectStore) -> None:
    options = delta_options(store)
    assert (options["conditional_put"], options["aws_s3_allow_unsafe_rename"]) == ("etag", "false")


def test_spark_is_told_where_the_store_is_and_no_secret(bucket: Layout, object_store: RunningStore) -> None:
    conf = session_conf(Settings(root=bucket.root))
    assert conf["spark.hadoop.fs.s3a.endpoint"] == object_store.environment["AWS_ENDPOINT_URL"]
    assert "AbortableStream" in conf["spark.sql.streaming.checkpointFileManagerClass"]
    assert not any(secret in text for secret in LOGIN.values() for text in conf.values() if len(secret) > 8)
    assert "spark.hadoop.fs.s3a.endpoint" not in hadoop_conf(AWS)
    assert "checkpointFileManagerClass" not in "".join(session_conf(Settings(root="/data")))


def test_spark_has_its_own_name_for_a_place(bucket: Layout, tmp_path: Path) -> None:
    assert to_hadoop(bucket.root) == f"s3a{bucket.root.removeprefix('s3')}"
    assert Folder.at(bucket.table("users")).spark_uri("a/b") == f"{to_hadoop(bucket.root)}/tables/users/a/b"
    assert Folder.at(str(tmp_path)).spark_uri("a/b") == f"file://{tmp_path}/a/b"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("404 <Code>NoSuchBucket</Code>", "it has no bucket b: create it"),
        ("403 Forbidden", "does not let this login use the bucket b"),
        ("the credential provider was not enabled", "there is no login for it"),
        ("PUT http://169.254.169.254/latest/api/token: 403 Forbidden", "there is no login for it"),
        ("Received redirect without LOCATION", "the bucket b is in another region"),
        ("Connection refused", "it does not answer"),
    ],
)
def test_a_failure_becomes_one_sentence(text: str, sentence: str) -> None:
    explained = str(explain_failure(NEAR, "s3://b/path", f"{text}\nmore of it"))
    assert explained.startswith("the object store (http://127.0.0.1:8333) cannot be used: ")
    assert sentence in explained
    assert "\n" not in explained


def test_of_four_processes_exactly_one_writes_a_version(bucket: Layout) -> None:
    rounds, racers = 8, range(1, 5)
    store.create_table(bucket, "status")
    answers = dict(race(bucket, take_versions, *[(me, rounds) for me in racers]))
    winners = [[me for me in racers if answers[me][number]] for number in range(rounds)]
    assert [len(some) for some in winners] == [1] * rounds
    table = store.open_table(bucket, "status")
    assert table.version() == rounds
    assert [[table.transaction_version(f"round-{number}")] for number in range(rounds)] == winners


def test_the_proof_passes_here_and_leaves_nothing(bucket: Layout) -> None:
    prove_commits(bucket)
    assert [info.path for info in Folder.at(bucket.under(root_check.PROOFS)).list_all() if info.is_file] == []


def test_a_store_that_takes_both_commits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a store that does not know conditional writes: the second commit goes through."""

    def commit_anyway(table: Any, rows: Any, **options: Any) -> None:
        if isinstance(table, DeltaTable):
            table.update_incremental()
        write_deltalake(table, rows, **options)

    monkeypatch.setattr(root_check, "write_deltalake", commit_anyway)
    with pytest.raises(SwitchyardError, match="takes two commits of the same version, so rows would be lost"):
        prove_commits(Layout(str(tmp_path)))


def test_specs_drafts_and_checkpoints_come_and_go(bucket: Layout) -> None:
    spec = make_spec(0)
    keep_draft(bucket, "s-1", spec)
    adopted = adopt_draft(bucket, "s-1", 7)
    assert adopted == spec.model_copy(update={"generation": 7}) == load_spec(bucket, 7)
    assert adopt_draft(bucket, "s-1", 7) is None
    lines = ["v1", "{}", '{"users": {"0": 5}}', '{"accounts": {"0": 6, "1": 7}}']
    Folder.at(bucket.checkpoint(7)).write("offsets/3", "\n".join(lines).encode())
    ends = {"users": {0: 5}, "accounts": {0: 6, 1: 7}}
    assert read_batch_end(bucket.checkpoint(7), 3, ("users", "accounts")) == ends
    with pytest.raises(SwitchyardError, match="the checkpoint is damaged: where batch 4 ends is not there"):
        read_batch_end(bucket.checkpoint(7), 4, ("users", "accounts"))
    remove_checkpoint(bucket, 7)
    assert load_spec(bucket, 7) is None
    assert Folder.at(bucket.checkpoint(7)).list_all() == []


def parquet_files(layout: Layout, name: str) -> set[str]:
    folder = Folder.at(layout.table(name))
    paths = {folder.relative(info) for info in folder.list_all() if info.is_file}
    return {path for path in paths if not path.startswith("_delta_log/")}


def test_vacuum_deletes_what_no_version_names_and_only_that(bucket: Layout) -> None:
    gone, kept = TableWriterSet(bucket, 1), TableWriterSet(bucket, 2)
    gone.commit(0)
    kept.commit(0)
    assert remove_generation_rows(bucket, 1) == 2
    folder = Folder.at(bucket.table("users"))
    folder.write("generation=2/bulk-1-9/part-0.parquet", b"left by a dead attempt")
    before = parquet_files(bucket, "users")
    later = datetime.now(UTC) + timedelta(days=2)
    done = vacuum_table(bucket, "users", now=later, retention=timedelta(hours=1))
    assert (done.files, len(before)) == (2, 3)
    live = store.list_files(bucket, "users", int(store.open_table(bucket, "users").version()), 2)
    assert [f"{bucket.table('users')}/{path}" for path in parquet_files(bucket, "users")] == live
    assert [row["offset"] for row in store.read_rows(bucket, "users")] == [0]


def test_vacuum_refuses_a_table_that_misses_files(bucket: Layout) -> None:
    TableWriterSet(bucket, 1).commit(0)
    Folder.at(bucket.table("users")).delete_folder("generation=1")
    with pytest.raises(SwitchyardError, match="the table users names 1 files that its folder does not have"):
        vacuum_table(bucket, "users", now=datetime.now(UTC), retention=timedelta(hours=1))


def test_pages_are_filtered_and_sorted_without_a_disk(reader: Reader) -> None:
    wanted = [row["userOffset"] for row in joined_rows(range(30)) if row["age"] >= 11 and row["accountType"] == "gold"]
    asked = {"filters": ["age:ge:11", "accountType:eq:gold"], "sort": "-userOffset"}
    assert offsets(reader, **asked) == sorted(wanted, reverse=True)
    assert wanted


def test_the_command_line_reads_the_bucket(
    bucket: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_ROOT", bucket.root)
    monkeypatch.setenv("SWITCHYARD_HOME", str(tmp_path / "home"))
    active = StatusRow(1, Target("users", "accounts", "left"), datetime.now(UTC), epoch=1)
    set_row(HistoryStore(bucket), active)
    assert main(["tail", "orchestrator_status", "--json"]) == 0
    assert [row["generation"] for row in json.loads(capsys.readouterr().out)] == [1]
    assert main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["generation"] == 1
    assert Settings(root=bucket.root, home=None).workspace == Workspace(Path(".switchyard").absolute())


@pytest.mark.parametrize(
    ("root", "environment", "sentence"),
    [
        ("s3://no-such-bucket/x", {}, "has no bucket no-such-bucket"),
        (f"s3://{BUCKET}/x", {"AWS_SECRET_ACCESS_KEY": "another"}, "does not let this login use the bucket"),
        (f"s3://{BUCKET}/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "does not answer"),
    ],
)
def test_what_the_store_has_against_us_is_one_sentence(
    bucket: Layout,
    root: str,
    environment: Mapping[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SWITCHYARD_ROOT", root)
    assert main(["history", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["error"]
    assert sentence in told
    assert "\n" not in told


READ_ALL = """
from switchyard.layout import Layout
from switchyard.tables.folders import Folder
from switchyard.tables.root_check import prove_commits
import sys
layout = Layout(sys.argv[1])
prove_commits(layout)
Folder.at(layout.under("checkpoints")).write("1.json", b"{}")
"""


def test_a_login_in_a_file_will_do(bucket: Layout, object_store: RunningStore, tmp_path: Path) -> None:
    """As a secret of a container: nothing of it is in the environment."""
    login = "\n".join(f"{name.lower()} = {value}" for name, value in LOGIN.items())
    (tmp_path / "credentials").write_text(f"[default]\n{login}\n")
    address = {name: value for name, value in object_store.environment.items() if name not in LOGIN}
    subprocess.run(
        [sys.executable, "-c", READ_ALL, bucket.root],
        env=address | {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")},
        check=True,
        timeout=60,
    )
    assert Folder.at(bucket.under("checkpoints")).read_bytes("1.json") == b"{}"
