"""Registers the live page, its API and the turns at SQLite with Airflow; implements nothing."""

from __future__ import annotations

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from switchyard.airflow.page import URL_PREFIX, LazyPage
from switchyard.airflow.turns import WriteTurns

IS_SQLITE = conf.get_mandatory_value("database", "sql_alchemy_conn").startswith("sqlite")
WRITE_TURNS = {"middleware": WriteTurns, "kwargs": {"apart": URL_PREFIX}, "name": "Switchyard's turns at SQLite"}


class SwitchyardPlugin(AirflowPlugin):
    name = "switchyard"
    fastapi_apps = [{"app": LazyPage(), "url_prefix": URL_PREFIX, "name": "Switchyard"}]  # noqa: RUF012
    fastapi_root_middlewares = [WRITE_TURNS] if IS_SQLITE else []
    external_views = [  # noqa: RUF012
        {
            "name": "Switchyard",
            "href": f"{URL_PREFIX}/",
            "destination": "nav",
            "url_route": "switchyard",
            "nav_top_level": True,
        }
    ]
