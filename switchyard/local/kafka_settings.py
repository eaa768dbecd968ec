"""The Kafka client settings for the command line: those that Airflow's tasks get from its connections."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka.client import client_properties, read_properties
from switchyard.layout import CONTROL_CONNECTION as CONTROL
from switchyard.layout import KAFKA_CONNECTION as DATA
from switchyard.local.airflow import airflow_environment, has_database, names_database
from switchyard.settings import Settings

ASK_SECONDS = 60.0


def find_kafka(settings: Settings) -> dict[str, str]:
    """From the file, if there is one; else from Airflow, for a broker of one's own; the embedded one needs no login."""
    if settings.kafka_bootstrap is None or settings.kafka_properties is not None:
        return kafka_of_settings(settings)
    return ask_airflow(settings).get(DATA) or kafka_of_settings(settings)


def find_control_kafka(settings: Settings) -> dict[str, str]:
    """The same for the control topic, which may be on another cluster."""
    if (own := control_kafka_of_settings(settings)) is not None:
        return own
    found = ask_airflow(settings) if _has_control_connection(settings) else {}
    return found.get(CONTROL) or find_kafka(settings)


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


def control_kafka_of_settings(settings: Settings) -> dict[str, str] | None:
    """None when the control topic is where the data is, as far as the settings say."""
    if settings.kafka_control_properties is None:
        return None
    return client_properties(read_properties(settings.kafka_control_properties), CONTROL)


def _has_control_connection(settings: Settings) -> bool:
    """Whether Airflow may have one. To ask it takes seconds, so its own database is looked at where that is a file."""
    if f"AIRFLOW_CONN_{CONTROL.upper()}" in os.environ:
        return True
    database = settings.workspace.airflow / "airflow.db"
    if not database.exists():
        return names_database(os.environ)
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=5)) as opened:
            return bool(opened.execute("select 1 from connection where conn_id = ?", (CONTROL,)).fetchone())
    except sqlite3.Error:
        return True


def ask_airflow(settings: Settings) -> dict[str, dict[str, str]]:
    """What the connections of the Airflow that `up` has set up say; nothing when there is no such Airflow.

    Asked in a process of its own, as importing Airflow takes seconds; what it answers stays between the two.
    """
    if not has_database(settings) and not names_database(os.environ):
        return {}
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
        # What it has written may hold a connection, so it is not repeated.
        raise SwitchyardError(
            "Airflow did not give the connection kafka_default: look whether it is there, or name a file in "
            "SWITCHYARD_KAFKA_PROPERTIES"
        ) from None
    found = json.loads(answer.stdout.splitlines()[-1])
    if found[DATA] is None:
        raise SwitchyardError(
            "Airflow has no connection kafka_default: add it, or name a file in SWITCHYARD_KAFKA_PROPERTIES"
        )
    return {name: client_properties(extra, name) for name, extra in found.items() if extra is not None}
