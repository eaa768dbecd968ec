"""The token that Prometheus gets: Airflow takes it, it may look and nothing else, and its file is private."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from switchyard.airflow.metrics_token import LIFE_SECONDS, RENEW_SECONDS, make_token, write_token
from switchyard.errors import InputError


def test_the_token_may_look_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails

    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    token, manager = make_token(), create_auth_manager()
    claims = asyncio.run(manager._get_token_validator().avalidated_claims(token))
    user = manager.deserialize_user(claims)
    assert claims["exp"] - claims["iat"] == LIFE_SECONDS > RENEW_SECONDS
    assert manager.is_authorized_view(access_view=AccessView.PLUGINS, user=user)
    run = DagDetails(id="switchyard_generation")
    assert not manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=run, user=user)
    assert not manager.is_authorized_connection(method="GET", user=user)


def test_without_the_secret_of_the_api_server_there_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "")
    with pytest.raises(InputError, match="jwt_secret is not known here"):
        make_token()


def test_the_file_is_private_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    write_token(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["token"]
    write_token(path, "for Prometheus", for_group=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
