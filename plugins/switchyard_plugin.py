"""Register the live page and its API with Airflow; implement nothing."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from switchyard.airflow.page import URL_PREFIX, LazyPage


class SwitchyardPlugin(AirflowPlugin):
    name = "switchyard"
    fastapi_apps = [{"app": LazyPage(), "url_prefix": URL_PREFIX, "name": "Switchyard"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Switchyard",
            "href": f"{URL_PREFIX}/",
            "destination": "nav",
            "url_route": "switchyard",
            "nav_top_level": True,
        }
    ]
