"""The baseline without a join: Spark appends both topics to Delta with its own writer, one query for each.

Parses the same fields with `from_json`, with the session and the source options of a generation. As a job of
spark-submit it goes on until it is killed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from switchyard.kafka.client_settings import read_properties, to_java
from switchyard.kafka.topics import TopicReader
from switchyard.settings import Settings, load_settings
from switchyard.stream.query import read_topic
from switchyard.stream.session import start_session

FIELDS = {
    "users": "userId string, name string, email string, age long",
    "accounts": "userId string, accountType string, balance double",
}


def start_appending(
    spark: SparkSession, settings: Settings, kafka: dict[str, str], topics: dict[str, str], **trigger: str | bool
) -> list[StreamingQuery]:
    """`topics` has the topic of each table; both are read from their earliest records."""
    with TopicReader(kafka) as reader:
        starts = {topic: reader.bounds(topic)[0] for topic in topics.values()}
    queries = []
    for table, topic in topics.items():
        records = read_topic(spark, topic, to_java(kafka), starts, settings.max_offsets_per_trigger)
        fields = F.from_json(F.col("value").cast("string"), FIELDS[table]).alias("fields")
        rows = records.select(fields, "timestamp", "partition", "offset").select("fields.*", "*").drop("fields")
        written = rows.writeStream.format("delta").option("checkpointLocation", f"{settings.root}/checkpoint-{table}")
        queries.append(written.trigger(**trigger).start(f"{settings.root}/{table}"))
    return queries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users-topic", required=True)
    parser.add_argument("--accounts-topic", required=True)
    parser.add_argument("--kafka-properties", type=Path, required=True)
    options = parser.parse_args()
    settings = load_settings()
    spark = start_session(settings, "append without a join")
    topics = {"users": options.users_topic, "accounts": options.accounts_topic}
    trigger = f"{settings.trigger_seconds} seconds"
    start_appending(spark, settings, read_properties(options.kafka_properties), topics, processingTime=trigger)
    spark.streams.awaitAnyTermination()
    return 1


if __name__ == "__main__":
    sys.exit(main())
