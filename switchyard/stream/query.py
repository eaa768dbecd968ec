"""The streaming query of a generation: new users, new accounts and new pairs of the same offsets in one frame.

Spark's inner stream-stream join keeps its state in RocksDB, so a lookup costs the matches and not the history. The
events of both topics are part of the same query, so that one micro-batch sees all three for the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from functools import cache

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from switchyard.joins import is_within
from switchyard.kafka.client_settings import name_group
from switchyard.offsets import Offsets
from switchyard.records import BATCH, JOIN_RULES, JOINED, LEFT, RIGHT, SIDES, Side
from switchyard.spec import GenerationSpec
from switchyard.stream.decode import decode

# Small batches do not wait for more records, and big ones are not handed over in small portions.
FETCHING = {"kafka.fetch.max.wait.ms": "20", "kafka.max.poll.records": "5000"}
# A client waits for a killed broker until the request times out, and asks only then for the new leader.
PATIENCE = {"kafka.request.timeout.ms": "10000", "kafka.default.api.timeout.ms": "15000"}


def kafka_options(kafka: Mapping[str, str]) -> dict[str, str]:
    return PATIENCE | {"groupIdPrefix": name_group("spark")} | {f"kafka.{name}": value for name, value in kafka.items()}


def read_topic(
    spark: SparkSession, topic: str, kafka: Mapping[str, str], starts: Offsets, max_offsets: int
) -> DataFrame:
    options = {
        **kafka_options(kafka),
        **FETCHING,
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: starts[topic]}),
        "failOnDataLoss": "true",
        # With the timeout of PATIENCE, ten minutes.
        "fetchOffset.numRetries": "40",
        "fetchOffset.retryIntervalMs": "500",
        "maxOffsetsPerTrigger": str(max_offsets),
    }
    return spark.readStream.format("kafka").options(**options).load()


def read_range(
    spark: SparkSession, topic: str, kafka: Mapping[str, str], start: Offsets, end: Offsets, least_tasks: int = 1
) -> DataFrame:
    """Read the records of a topic between two positions as a batch, with at least so many tasks."""
    ends = end.get(topic, {})
    starts = {partition: start.get(topic, {}).get(partition, 0) for partition in ends}
    options = {
        **kafka_options(kafka),
        **FETCHING,
        "assign": json.dumps({topic: sorted(ends)}),
        "startingOffsets": json.dumps({topic: starts}),
        "endingOffsets": json.dumps({topic: ends}),
        "minPartitions": str(least_tasks),
        "failOnDataLoss": "true",
    }
    return spark.read.format("kafka").options(**options).load()


def batch_rows(users: DataFrame, accounts: DataFrame, join_type: str, retention: timedelta | None = None) -> DataFrame:
    """Turn Kafka records of both topics into the rows of a batch, which `tables/joined_changes.py` takes apart."""
    left, right = (_events(records, side) for records, side in ((users, LEFT), (accounts, RIGHT)))
    pairs = _pairs(left, right, join_type, retention)
    return _source_rows(left, LEFT).union(_source_rows(right, RIGHT)).union(pairs)


def _events(records: DataFrame, side: Side) -> DataFrame:
    return _shuffled(decode(records, side), side.key).withColumnsRenamed(side.position)


def _shuffled(events: DataFrame, key: str) -> DataFrame:
    """Shuffle events as the join will, so that Spark reads the topic once and the shuffle twice."""
    # Spark reuses a shuffle only for an equal one. It would drop unused columns of one side, but not from a struct.
    names = [name for name in events.columns if name != key]
    packed = events.select(key, F.struct(*names).alias("packed")).repartition(key)
    return packed.select(key, *[F.col("packed")[name].alias(name) for name in names])


def _valid(events: DataFrame) -> DataFrame:
    # The condition depends on the partition, else Spark would move it below the shuffle and could not reuse that.
    is_valid = F.when(F.spark_partition_id() >= 0, F.col("kind") == "valid")
    return events.where(is_valid).drop("kind", "text", "reason", "owner")


def _source_rows(events: DataFrame, side: Side) -> DataFrame:
    kind = F.col("kind")
    owned = events.withColumn(side.key, F.coalesce(side.key, "owner"))
    named = owned.withColumn("value", F.when(kind == "reject", F.col("text")))
    named = named.withColumn("kind", F.when(kind == "valid", side.singular).otherwise(kind))
    return named.select(*_batch_columns(frozenset(named.columns)))


@cache
def _batch_columns(present: frozenset[str]) -> list[Column]:
    # Cached for each of the three parts, because a swap waits for every call into the JVM.
    return [F.col(name) if name in present else F.lit(None).cast(kind).alias(name) for name, kind in BATCH.items()]


def _pairs(users: DataFrame, accounts: DataFrame, join_type: str, retention: timedelta | None) -> DataFrame:
    rule = JOIN_RULES[join_type]
    left, right = _valid(users), _valid(accounts).withColumnRenamed(RIGHT.key, RIGHT.own_key)
    matches = [F.col(LEFT.key) == F.col(RIGHT.own_key)]
    if rule.looks_back:
        matches.append(F.col(rule.leading.other.ts) <= F.col(rule.leading.ts))
    if retention is not None:
        delay = f"{int(retention.total_seconds())} seconds"
        left, right = left.withWatermark(LEFT.ts, delay), right.withWatermark(RIGHT.ts, delay)
        matches.append(is_within(retention))
    pairs = left.join(right, matches, "inner").select(F.lit("pair").alias("kind"), *JOINED)
    return pairs.select(*_batch_columns(frozenset(pairs.columns)))


def generation_rows(spark: SparkSession, spec: GenerationSpec, kafka: Mapping[str, str], max_offsets: int) -> DataFrame:
    users, accounts = (read_topic(spark, spec.topic_of(side), kafka, spec.startOffsets, max_offsets) for side in SIDES)
    return batch_rows(users, accounts, spec.joinType, spec.stateRetention)
