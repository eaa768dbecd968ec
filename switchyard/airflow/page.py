"""The page in Airflow: who may read and command, by Airflow's own login and permissions.

Every process of Airflow loads plugins, and only the API server needs the page: it is made at its first request.
Annotations are evaluated here, as FastAPI reads those of functions inside functions.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

    from switchyard.web.access import Access

URL_PREFIX = "/switchyard"


class LazyPage:
    """An ASGI application that becomes the page when it is first asked for something."""

    def __init__(self) -> None:
        self._app: FastAPI | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            self._app = make_page()
        await self._app(scope, receive, send)


def make_page() -> "FastAPI":
    from switchyard.settings import load_settings
    from switchyard.web.api import create_app

    return create_app(load_settings(), airflow_access())


def airflow_access() -> "Access":
    """Let users with the permission to see plugins read, and those who may trigger the generation's DAG command."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from airflow.api_fastapi.auth.managers.models.resource_details import (
        AccessView,
        ConnectionDetails,
        DagAccessEntity,
        DagDetails,
    )
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, HTTPException

    from switchyard.airflow.defaults import GENERATION_DAG
    from switchyard.layout import KAFKA_CONNECTION
    from switchyard.web.access import Access, Viewer

    signed_in = Depends(get_user)

    def read(user: BaseUser = signed_in) -> Viewer:
        manager = get_auth_manager()
        if not manager.is_authorized_view(access_view=AccessView.PLUGINS, user=user):
            raise HTTPException(403, "you may not see plugins: ask an administrator of Airflow")
        run = DagDetails(id=GENERATION_DAG)
        may_command = manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=run, user=user
        )
        # With the connection to Kafka, a user could read the records, and with them e-mail addresses, anyway.
        kafka = ConnectionDetails(conn_id=KAFKA_CONNECTION)
        sees = manager.is_authorized_connection(method="GET", details=kafka, user=user)
        return Viewer(user.get_name(), may_command, sees)

    def command(viewer: Viewer = Depends(read)) -> Viewer:  # noqa: B008  # so FastAPI wants it
        if not viewer.may_command:
            raise HTTPException(403, f"you may not trigger the DAG {GENERATION_DAG}: ask an administrator of Airflow")
        return viewer

    return Access(read, command)
