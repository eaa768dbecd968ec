"""The fields that the forms of several DAGs share."""

from __future__ import annotations

from airflow.sdk import Param

from switchyard.airflow.defaults import TOPIC_PATTERN
from switchyard.layout import JOIN_TYPES
from switchyard.records import SIDES

TARGET_PARAMS = {
    f"{side.plural}_topic": Param(
        "",
        type=["string", "null"],
        pattern=TOPIC_PATTERN,
        title=f"{side.plural.capitalize()} topic",
        description=f"An existing Kafka topic with {side.singular} records. Empty: the one that is read now.",
    )
    for side in SIDES
} | {
    "join_type": Param(
        "",
        type=["string", "null"],
        enum=["", None, *JOIN_TYPES],
        title="Join type",
        description="Empty: the one that is used now. left and inner: every pair of events. "
        "natural: each user event with the latest account. "
        "asof: each account event with the user as of its time.",
    ),
}
