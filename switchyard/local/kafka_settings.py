"""The Kafka client settings for the command line: those that Airflow's tasks get from the connection kafka_default."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka.client import client_properties, read_properties
from switchyard.local.airflow import airflow_environment, has_database, names_database
from switchyard.settings import Settings

ASK_SECONDS = 60.0


def find_kafka(settings: Settings) -> dict[str, str]:
    """From the file, if there is one; else from Airflow, for a broker of one's own; the embedded one needs no login."""
    if settings.kafka_bootstrap is None or settings.kafka_properties is not None:
        return kafka_of_settings(settings)
    return ask_airflow(settings) or kafka_of_settings(settings)


def kafka_of_settings(settings: Settings) -> dict[str, str]:
    """What the settings say, without asking Airflow."""
    address = {"bootstrap.servers": settings.bootstrap}
    if settings.kafka_properties is None:
        return address
    if settings.kafka_bootstrap is None:
        raise InputError(
            "SWITCHYARD_KAFKA_PROPERTIES is for a broker of your own: set SWITCHYARD_KAFKA_BOOTSTRAP to its address too"
        )
    properties = read_properties(settings.kafka_properties)
    if properties.get("bootstrap.servers", settings.bootstrap) != settings.bootstrap:
        raise InputError(
            f"bootstrap.servers in {settings.kafka_properties} is not SWITCHYARD_KAFKA_BOOTSTRAP: remove it there"
        )
    return client_properties(properties | address)


def ask_airflow(settings: Settings) -> dict[str, str] | None:
    """What the connection of the Airflow that `up` has set up says; None when there is no such Airflow.

    Asked in a process of its own, as importing Airflow takes seconds; what it answers stays between the two.
    """
    if not has_database(settings) and not names_database(os.environ):
        return None
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "switchyard.airflow.connection"],
            env=airflow_environment(settings),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        # What it has written may hold the connection, so it is not repeated.
        raise SwitchyardError(
            "Airflow did not give the connection kafka_default: look whether it is there, or name a file in "
            "SWITCHYARD_KAFKA_PROPERTIES"
        ) from None
    return client_properties(json.loads(answer.stdout.splitlines()[-1]))
