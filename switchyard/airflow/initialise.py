"""Prepare Airflow's database, connections and first user for `switchyard up`, in one process.

Run as a module with Airflow's environment set. Safe to run again: what a person created or changed stays. One
exception: where the settings name a file for a connection to Kafka, the file wins.
"""

from __future__ import annotations

import json

from airflow.models.connection import Connection
from airflow.utils import db
from airflow.utils.session import create_session
from sqlalchemy import select

from switchyard.layout import CONTROL_CONNECTION as CONTROL
from switchyard.layout import KAFKA_CONNECTION as DATA
from switchyard.local.airflow import ensure_password
from switchyard.local.kafka_settings import control_kafka_of_settings, kafka_of_settings
from switchyard.settings import Settings, load_settings

# Marks a connection as ours: only then may its address follow the settings.
OURS = "Created by switchyard up; it follows the settings as long as this text stays."


def kafka_connection(settings: Settings) -> Connection:
    extra = {
        **kafka_of_settings(settings),
        "group.id": "switchyard",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
    }
    return Connection(conn_id=DATA, conn_type="kafka", extra=json.dumps(extra), description=OURS)


def control_connection(settings: Settings) -> Connection | None:
    kafka = control_kafka_of_settings(settings)
    if kafka is None:
        return None
    return Connection(conn_id=CONTROL, conn_type="kafka", extra=json.dumps(kafka), description=OURS)


def spark_connection(settings: Settings) -> Connection:
    return Connection(conn_id="spark_default", conn_type="spark", host=settings.spark_master, description=OURS)


def ensure_connections(settings: Settings) -> None:
    # The connections that a file decides, whatever a person has changed.
    files = {DATA: settings.kafka_properties, CONTROL: settings.kafka_control_properties}
    connections = kafka_connection(settings), control_connection(settings), spark_connection(settings)
    with create_session() as session:
        for wanted in filter(None, connections):
            present = session.scalar(select(Connection).where(Connection.conn_id == wanted.conn_id))
            if present is None:
                session.add(wanted)
            elif present.description == OURS or files.get(wanted.conn_id):
                present.host = wanted.host
                present.description = OURS
                present.set_extra(wanted.extra)


def main() -> None:
    settings = load_settings()
    ensure_password(settings.workspace)
    db.upgradedb()
    ensure_connections(settings)


if __name__ == "__main__":
    main()
