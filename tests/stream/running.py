"""Running a generation's stream inside the test process, attempt by attempt, to the end of its topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
from pyspark.sql import SparkSession

from switchyard.generations import GenerationSpec, keep_spec, resolve_spec
from switchyard.joins import JOINED_COLUMNS
from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.stream.audit import Audit, audit_at_newest
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.swaps import Target
from switchyard.tables import store
from switchyard.tables.writer import claim_attempt
from tests.topics import Topics


@dataclass(frozen=True)
class Stream:
    spark: SparkSession
    settings: Settings
    topics: Topics
    spec: GenerationSpec

    @classmethod
    def prepare(cls, spark: SparkSession, layout: Layout, topics: Topics, join_type: str, **options: Any) -> Stream:
        generation = options.pop("generation", 1)
        settings = Settings(root=layout.root, **options)
        target = Target(topics.users, topics.accounts, join_type)
        with TopicReader(topics.kafka) as reader:
            spec = resolve_spec(reader, target, "earliest", settings.state_retention, generation)
        return cls(spark, settings, topics, keep_spec(layout, spec))

    def run_attempt(self) -> BatchRunner:
        """One attempt that reads all there is, in micro-batches of the configured size, and ends."""
        runner = BatchRunner(self.settings, self.spec, claim_attempt(self.settings.layout, self.spec.generation))
        rows = generation_rows(
            self.spark,
            self.spec,
            self.topics.kafka,
            self.settings.max_offsets_per_trigger,
        )
        query = (
            rows.writeStream.foreachBatch(runner)
            .option("checkpointLocation", self.settings.layout.checkpoint(self.spec.generation))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return runner

    def audit(self) -> Audit:
        return audit_at_newest(lambda: self.spark, self.settings, self.spec.generation)


LATEST = "order by {0}Ts desc nulls last, {0}Partition desc, {0}Offset desc"
PAIRS = """
select u.userId, name, email, age, accountType, balance, u.ts as userTs, u.partition as userPartition,
       u."offset" as userOffset, a.ts as accountTs, a.partition as accountPartition, a."offset" as accountOffset
from users u {how} join accounts a on u.userId = a.userId
"""
DUCKDB_JOINS = {
    "left": PAIRS.format(how="left"),
    "inner": PAIRS.format(how="inner"),
    "natural": f"""
        select * from ({PAIRS.format(how="left")})
        qualify row_number() over (partition by userPartition, userOffset {LATEST.format("account")}) = 1
    """,
    "asof": f"""
        select * exclude (accountUserId) replace (coalesce(userId, accountUserId) as userId) from (
          {PAIRS.format(how="right").replace("u.userId,", "u.userId, a.userId as accountUserId,")} and u.ts <= a.ts
        ) qualify row_number() over (partition by accountPartition, accountOffset {LATEST.format("user")}) = 1
    """,
}


def join_with_duckdb(layout: Layout, join_type: str) -> list[tuple[Any, ...]]:
    """The join as another engine computes it over the files of the same tables."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    for name in ("users", "accounts"):
        connection.register(name, connection.read_parquet(_files(layout, name)))
    rows = connection.execute(f"select {', '.join(JOINED_COLUMNS)} from ({DUCKDB_JOINS[join_type]})").fetchall()
    return sorted(rows, key=str)


def _files(layout: Layout, name: str) -> list[str]:
    return store.list_files(layout, name, store.open_table(layout, name).version(), 1)


def read_joined(layout: Layout) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("joined", connection.read_parquet(_files(layout, "joined")))
    return sorted(connection.execute(f"select {', '.join(JOINED_COLUMNS)} from joined").fetchall(), key=str)
