"""A backfill on the real stack: built beside the stream, published, and taken back. Runs after the swaps."""

from __future__ import annotations

from pyspark.sql import SparkSession

from switchyard.health.inputs import run_checks
from switchyard.stream.audit import audit_at_newest
from switchyard.swap.history import Event
from tests.integration.conftest import Stack
from tests.waiting import eventually

BACKFILL_DAG = "switchyard_backfill"


def test_history_is_built_published_and_taken_back(stack: Stack, spark: SparkSession) -> None:
    before = eventually(lambda: (now := stack.status())["healthy"] and now, 90, 1)
    stack.api.trigger(BACKFILL_DAG, "refused", {"users_topic": "no-such-topic"})
    stack.api.trigger(BACKFILL_DAG, "history", {"join_type": "asof", "publish": True})
    eventually(lambda: "publish-history" in stack.history.ledger().outcomes, 240, 0.5)
    ledger = stack.history.ledger()
    events = {swap_id: [e.event for e in ledger.entries if e.swapId == swap_id] for swap_id in ("backfill-history",)}
    assert events["backfill-history"] == [Event.REQUESTED, Event.STARTING, Event.PLANNED, Event.RETIRED]
    assert ledger.outcomes["publish-history"].event is Event.APPLIED
    assert ledger.outcomes["backfill-refused"].event is Event.REJECTED
    status = stack.json("status")
    assert status["generation"] > before["generation"]
    assert (status["joinType"], status["usersTopic"]) == ("asof", before["usersTopic"])
    assert (status["snapshot"]["from"], status["snapshot"]["to"]) == ("earliest", "latest")
    verdicts = {verdict.check: verdict.is_incident for verdict in run_checks(stack.settings, stack.kafka)}
    assert not any(verdicts.values()), verdicts
    eventually(lambda: stack.api.run_state(BACKFILL_DAG, "history") == "success", 60, 1)
    eventually(lambda: stack.api.run_state(BACKFILL_DAG, "refused") == "failed", 60, 1)
    told = [row["msg"] for row in stack.json("logs", "--limit", "1000") if row["swapId"] == "backfill-history"]
    assert any("reading" in line and "a second" in line for line in told), told
    eventually(lambda: stack.history.ledger().is_retired(before["generation"]), 60, 1)
    audit = audit_at_newest(lambda: spark, stack.settings)
    assert (audit.generation, audit.missing, audit.extra, audit.unaccounted) == (status["generation"], 0, 0, 0), audit
    assert audit.rowsCompared > 0
    back = stack.run("rollback", "--wait")
    assert back.returncode == 0, back.stdout + back.stderr
    after = eventually(lambda: (now := stack.status())["healthy"] and now, 60, 1)
    assert (after["generation"], after["snapshot"]) == (before["generation"], None)
    again = stack.run("backfill", "--generation", str(status["generation"]), "--wait")
    assert again.returncode == 0, again.stdout + again.stderr
    assert stack.status()["generation"] == status["generation"]
    assert stack.run("rollback", "--wait").returncode == 0
