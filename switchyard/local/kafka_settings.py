"""The Kafka client settings for the command line: those that Airflow's tasks get from its connections."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg2

from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka.client_settings import client_properties, read_properties
from switchyard.layout import CONTROL_CONNECTION as CONTROL
from switchyard.layout import KAFKA_CONNECTION as DATA
from switchyard.local.airflow import airflow_environment, has_database, names_database
from switchyard.local.database import Database
from switchyard.settings import Settings

ASK_SECONDS = 60.0
_SECRETS_BACKEND = ("AIRFLOW__SECRETS__BACKEND", "AIRFLOW__WORKERS__SECRETS_BACKEND")


def find_kafka(settings: Settings) -> dict[str, str]:
    """Read the properties file if one is set; else ask Airflow for the connection of an external broker.

    The embedded broker needs no login.
    """
    if not _is_in_airflow(settings):
        return kafka_of_settings(settings)
    return ask_airflow(settings, DATA) or kafka_of_settings(settings)


def find_control_kafka(settings: Settings) -> dict[str, str]:
    """Find the same for the control topic, which may be on another cluster."""
    if (own := control_kafka_of_settings(settings)) is not None:
        return own
    if _is_in_airflow(settings):
        return ask_airflow(settings, CONTROL, DATA) or kafka_of_settings(settings)
    found = ask_airflow(settings, CONTROL) if _may_have_control_connection(settings) else None
    return found or kafka_of_settings(settings)


def _is_in_airflow(settings: Settings) -> bool:
    """Whether only Airflow's connection has the login to the data's cluster."""
    return settings.kafka_bootstrap is not None and settings.kafka_properties is None


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
    return client_properties(read_properties(settings.kafka_control_properties, CONTROL), CONTROL)


def _may_have_control_connection(settings: Settings) -> bool:
    """Whether Airflow must be asked, which takes seconds; a look into its embedded database often says no."""
    config = settings.workspace.airflow / "airflow.cfg"
    if f"AIRFLOW_CONN_{CONTROL.upper()}" in os.environ or _has_secrets_backend(config) or names_database(os.environ):
        return True
    if not has_database(settings):
        return False
    try:
        with closing(Database(settings.workspace.database).connect()) as opened, opened.cursor() as cursor:
            cursor.execute("select 1 from connection where conn_id = %s", (CONTROL,))
            return cursor.fetchone() is not None
    except psycopg2.Error:
        return True


def _has_secrets_backend(config: Path) -> bool:
    """Whether Airflow reads connections from a secrets backend, which only Airflow can ask."""
    if any(name.startswith(_SECRETS_BACKEND) for name in os.environ):
        return True
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read(config, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return True
    return bool(parser.get("secrets", "backend", fallback="") or parser.get("workers", "secrets_backend", fallback=""))


def ask_airflow(settings: Settings, *names: str) -> dict[str, str] | None:
    """Return the first of these connections that Airflow has; None when no Airflow has been set up here.

    Importing Airflow takes seconds and would stay in memory, so a separate process asks it.
    """
    if not has_database(settings) and not names_database(os.environ):
        return None
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "switchyard.airflow.connection", *names],
            env=airflow_environment(settings),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        # Do not quote its output: it may hold a password.
        raise SwitchyardError(
            f"Airflow did not give the connection {' or '.join(names)}: look whether it is there and `switchyard up` "
            "runs, or name a file in SWITCHYARD_KAFKA_PROPERTIES"
        ) from None
    found = json.loads(answer.stdout.splitlines()[-1])
    if found is None and DATA in names:
        raise SwitchyardError(
            f"Airflow has no connection {DATA}: add it, or name a file in SWITCHYARD_KAFKA_PROPERTIES"
        )
    return client_properties(found["extra"], found["connection"]) if found else None
