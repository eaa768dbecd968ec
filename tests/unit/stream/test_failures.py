"""What people are told when a stream stops."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import SwitchyardError
from switchyard.stream.failures import DETAILS, explain_failure, explain_text, is_disk_full, write_when_disk_has_room
from tests.failures import SECRET, check, explain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("OSError: [Errno 28] Error writing bytes. Detail: [errno 28] No space left on device", "disk"),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", "Kafka no longer holds"),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server", "does not exist any more"),
        ("java.lang.IllegalStateException: Incomplete log file in the offset commit log", "checkpoint is damaged"),
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE] An error", "checkpoint is damaged"),
        ("[CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY]", "not enough memory"),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node", "did not answer"),
    ],
)
def test_a_known_cause_is_one_sentence(text: str, words: str) -> None:
    assert words in explain_text(text)
    assert "\n" not in explain_text(text)


def test_of_an_unknown_cause_no_value_is_repeated() -> None:
    error = ValueError("could not convert 'jane@example.org' of pyarrow.lib.ArrowInvalidError")
    assert explain_failure(error) == f"ValueError: could not convert '...' of ArrowInvalidError; {DETAILS}"
    said = explain_text(f"java.lang.RuntimeException: {error}")
    assert "RuntimeException: could not convert '...' of ArrowInvalidError" in said
    assert "jane" not in said


JAVA = """An error occurred while calling o1597.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2900)
Caused by: java.lang.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` {"userId": "jane"}
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.lang.IllegalStateException
"""


def test_of_a_trace_the_innermost_cause_that_says_something_is_told() -> None:
    said = explain_text(JAVA)
    assert said == f"ArithmeticException: Division by zero; {DETAILS}"


def test_of_a_chain_of_errors_the_first_is_told() -> None:
    def fail() -> None:
        try:
            {}["a person"]
        except KeyError as error:
            raise RuntimeError("wrapped") from error

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert explain_failure(caught.value) == f"KeyError: '...'; {DETAILS}"
    assert "not enough memory" in explain_failure(MemoryError("malloc of size 12 failed"))


@given(st.text(max_size=400))
def test_whatever_failed_it_is_one_line_of_bounded_length(text: str) -> None:
    for said in (explain_text(text), explain_failure(ValueError(text)), explain_failure(OSError(text))):
        assert said.strip() == said
        assert "\n" not in said
        assert 0 < len(said) < 400


def test_our_own_errors_are_told_as_they_are() -> None:
    trace = "Traceback:\n  File x\nswitchyard.errors.LostRaceError: the table is busy; wait\n at java.lang.Thread"
    assert explain_text(trace) == "the table is busy; wait"
    assert explain_failure(SwitchyardError("what was wrong; what to do")) == "what was wrong; what to do"


def test_a_reason_that_finds_no_room_is_told_when_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.stream.failures.ROOM_SECONDS", 0)
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")

    write_when_disk_has_room("the disk is full", write, threading.Event())
    assert len(tries) == 3


def test_waiting_for_room_ends_when_it_is_asked_to() -> None:
    def write() -> None:
        raise OSError(28, "No space left on device")

    stop = threading.Event()
    stop.set()
    write_when_disk_has_room("the disk is full", write, stop)
    assert not is_disk_full(ValueError("28"))


@pytest.fixture
def table(tmp_path: Path) -> str:
    uri = str(tmp_path / "table")
    write_deltalake(uri, pa.table({"number": [1, 2, 3]}))
    return uri


def test_two_writers_at_the_same_moment(table: str) -> None:
    one, other = DeltaTable(table), DeltaTable(table)
    other.delete("number = 1")
    check(explain(lambda: one.delete("number = 2")), "another writer has changed a table at the same moment")


def test_errors_of_python() -> None:
    check(explain(lambda: {}[SECRET]), f"KeyError: '...'; {DETAILS}")
    check(explain(lambda: Path("/nowhere/at/all").read_text()), "FileNotFoundError: ", DETAILS)
    check(explain(lambda: json.loads(SECRET)), "JSONDecodeError: Expecting value: line 1 column 1 (char 0)", DETAILS)
    check(explain(lambda: pa.array([1, SECRET])), "ArrowInvalid: Could not convert '...'", DETAILS)
