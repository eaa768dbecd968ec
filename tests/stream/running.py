"""Running a generation's stream inside the test process, attempt by attempt, to the end of its topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from switchyard.kafka.topics import TopicReader
from switchyard.layout import Layout
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.stream.audit import Audit, audit_at_newest
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.swap.generations import keep_spec, resolve_spec
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
