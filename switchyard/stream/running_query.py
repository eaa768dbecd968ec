"""The query of a generation while it runs: whether it has failed, and how it is stopped between two batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from switchyard.stream.failures import explain_text
from switchyard.stream.runner import BatchRunner


@dataclass(frozen=True)
class RunningQuery:
    spark: SparkSession
    query: StreamingQuery
    runner: BatchRunner
    kafka: Mapping[str, str]
    """The settings of Spark's Kafka clients"""

    def find_failure(self) -> str | None:
        """Return why the query has stopped; None while it runs."""
        if self.query.isActive and not self.runner.failure:
            return None
        return self.runner.failure or explain_text(str(self.query.exception()))

    def close(self) -> None:
        self.runner.stopping.set()
        with self.runner.busy:
            self.query.stop()
