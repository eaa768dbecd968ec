"""Brings Airflow's database, connections and first user to where `switchyard up` needs them, in one process.

Run as a module with Airflow's environment set. Safe to run again: what a person created or changed stays, but for
`kafka_default` where SWITCHYARD_KAFKA_PROPERTIES names a file: then that is what counts.
"""

from __future__ import annotations

import json

from airflow.models.connection import Connection
from airflow.utils import db
from airflow.utils.session import create_session
from sqlalchemy import select

from switchyard.local.airflow import ensure_password
from switchyard.local.kafka_settings import kafka_of_settings
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
    return Connection(conn_id="kafka_default", conn_type="kafka", extra=json.dumps(extra), description=OURS)


def spark_connection(settings: Settings) -> Connection:
    return Connection(conn_id="spark_default", conn_type="spark", host=settings.spark_master, description=OURS)


def ensure_connections(settings: Settings) -> None:
    with create_session() as session:
        for wanted in (kafka_connection(settings), spark_connection(settings)):
            present = session.scalar(select(Connection).where(Connection.conn_id == wanted.conn_id))
            if present is None:
                session.add(wanted)
            elif present.description == OURS or (settings.kafka_properties and wanted.conn_type == "kafka"):
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
