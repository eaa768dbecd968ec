"""The connections to Kafka: read, checked, and their secrets made known to Airflow's masker.

The control topic may be on another cluster than the data: then `kafka_control` says how to reach it.

Run as a module, with Airflow's environment set and the names of connections as arguments, it writes the first one that
there is to its standard output, for the command line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from switchyard.layout import CONTROL_CONNECTION, KAFKA_CONNECTION


def read_kafka(conn_id: str = KAFKA_CONNECTION) -> dict[str, str]:
    """Read the Kafka client settings in a task."""
    from airflow.sdk import BaseHook

    return check_kafka(BaseHook.get_connection(conn_id).extra_dejson, conn_id)


def read_control_kafka() -> dict[str, str]:
    """Read those for the control topic, which is on the cluster of the data unless a connection says otherwise."""
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return read_kafka(CONTROL_CONNECTION)
    except AirflowNotFoundException:
        return read_kafka()


def check_kafka(extra: Mapping[str, Any], conn_id: str = KAFKA_CONNECTION) -> dict[str, str]:
    from airflow.sdk.log import mask_secret

    from switchyard.kafka.client_settings import client_properties
    from switchyard.kafka.security import SECRET_TEXTS, secret_values

    properties = client_properties(extra, conn_id)
    texts = [str(extra[name]) for name in SECRET_TEXTS if name in extra]
    for secret in [*secret_values(properties), *texts]:
        # A key has many lines, and a log hides line by line.
        for text in dict.fromkeys([secret, *secret.splitlines()]):
            mask_secret(text)
    return properties


def main(names: Sequence[str]) -> None:
    """Write the first of these connections that exists. The others are not read: they may be broken."""
    from airflow.models.connection import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    for conn_id in names:
        with suppress(AirflowNotFoundException):
            # Outside of a task there is no task runner that could be asked.
            extra = Connection.get_connection_from_secrets(conn_id).extra_dejson
            sys.stdout.write(json.dumps({"connection": conn_id, "extra": extra}))
            return
    sys.stdout.write(json.dumps(None))


if __name__ == "__main__":
    main(sys.argv[1:])
