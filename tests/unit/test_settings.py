"""Settings are refused where they enter, in one sentence that names the variable."""

from __future__ import annotations

import pytest

from switchyard.errors import InputError
from switchyard.settings import load_settings

AIRFLOW_URL = "SWITCHYARD_AIRFLOW_URL"


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("http://airflow-api-server:8080", "http://airflow-api-server:8080"),
        ("https://airflow.example.org/team/", "https://airflow.example.org/team"),
        ("http://[::1]:65535/", "http://[::1]:65535"),
    ],
)
def test_an_address_of_airflow(monkeypatch: pytest.MonkeyPatch, url: str, taken: str) -> None:
    monkeypatch.setenv(AIRFLOW_URL, url)
    assert load_settings().airflow_url == taken


@pytest.mark.parametrize(
    "url",
    [
        "",
        "airflow-api-server:8080",
        "ftp://airflow:8080",
        "file:///etc/passwd",
        "http://",
        "http://:8080",
        "http://airflow:0",
        "http://airflow:65536",
        "http://airflow:port",
        "http://admin:hunter2@airflow:8080",
        "http://hunter2@airflow",
        "http://airflow:8080/?token=hunter2",
        "http://airflow:8080/#part",
        "http://airflow 8080",
        "http://airflow:8080\n",
    ],
)
def test_what_is_no_address_of_airflow_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(AIRFLOW_URL, url)
    with pytest.raises(
        InputError, match=f"^a setting is not valid: {AIRFLOW_URL}: .*write http://host:port"
    ) as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)
