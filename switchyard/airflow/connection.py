"""The connection `kafka_default`: read, checked, and its secrets made known to Airflow's masker.

Run as a module, with Airflow's environment set, it writes the settings to its standard output, for the command line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from switchyard.airflow.defaults import KAFKA_CONNECTION


def read_kafka(conn_id: str = KAFKA_CONNECTION) -> dict[str, str]:
    """The Kafka client settings for a task."""
    from airflow.sdk import BaseHook

    return check_kafka(BaseHook.get_connection(conn_id).extra_dejson)


def check_kafka(extra: Mapping[str, Any]) -> dict[str, str]:
    from airflow.sdk.log import mask_secret

    from switchyard.kafka.client import client_properties
    from switchyard.kafka.security import secret_values

    properties = client_properties(extra)
    for secret in secret_values(properties):
        # A key has many lines, and a log hides line by line.
        for text in dict.fromkeys([secret, *secret.splitlines()]):
            mask_secret(text)
    return properties


def main() -> None:
    """Outside of a task there is no task runner to ask: Airflow's own list of secret backends is."""
    from airflow.models.connection import Connection

    sys.stdout.write(json.dumps(Connection.get_connection_from_secrets(KAFKA_CONNECTION).extra_dejson))


if __name__ == "__main__":
    main()
