"""The rules of docker-compose.yaml, which is not started here: pinned, health-checked, no secrets inside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXPECTED = {
    "postgres",
    "kafka",
    "spark-master",
    "spark-worker",
    "airflow-init",
    "airflow-api-server",
    "airflow-scheduler",
    "airflow-dag-processor",
    "airflow-triggerer",
}
EACH = pytest.mark.parametrize("name", sorted(SERVICES))


def test_the_services_are_the_production_parts() -> None:
    assert set(SERVICES) == EXPECTED


@EACH
def test_an_image_is_pinned_to_a_version(name: str) -> None:
    assert re.search(r":\d+\.\d+", SERVICES[name]["image"]), "pin the image to a version, never to latest"


def test_the_base_image_is_pinned() -> None:
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    assert re.search(r"^FROM \S+:\d+\.\d+\.\d+", dockerfile, re.M)


@EACH
def test_a_service_that_stays_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "no" or service["healthcheck"]["test"]


@EACH
def test_no_secret_is_written_into_the_file(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        if re.search(r"PASSWORD|SECRET|FERNET|SQL_ALCHEMY|TOKEN", key):
            assert "/run/secrets/" in value, f"{key}: give it as a file below /run/secrets"
        assert not re.search(r"://[^/\s]+:[^/\s]+@", str(value)), f"{key} contains a password"


@EACH
def test_a_service_waits_only_for_services_that_exist_and_secrets_that_are_declared(name: str) -> None:
    assert set(SERVICES[name].get("depends_on", {})) <= set(SERVICES)
    assert set(SERVICES[name].get("secrets", [])) <= set(COMPOSE["secrets"])


@EACH
def test_a_named_volume_is_declared(name: str) -> None:
    used = {mount.split(":")[0] for mount in SERVICES[name].get("volumes", [])}
    assert used <= set(COMPOSE["volumes"])


def test_secrets_come_from_files_that_git_ignores() -> None:
    assert "secrets/" in (PROJECT / "docker" / ".gitignore").read_text()
    for secret in COMPOSE["secrets"].values():
        assert secret["file"].startswith("docker/secrets/")


@EACH
def test_published_ports_are_on_loopback(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))
