"""The rules of docker-compose.yaml, which is not started here: valid, pinned, health-checked, no secrets inside, and
its environment is that of the settings. tests/topology runs the same parts as processes."""

from __future__ import annotations

import json
import re
import runpy
import stat
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
import yaml

from switchyard.local.airflow import airflow_environment
from switchyard.settings import Settings

PROJECT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXPECTED = {
    "postgres",
    "kafka-1",
    "kafka-2",
    "kafka-3",
    "kafka-topics",
    "spark-master",
    "spark-worker",
    "airflow-init",
    "airflow-api-server",
    "airflow-scheduler",
    "airflow-dag-processor",
    "airflow-triggerer",
}
OBSERVABILITY = {"otel-collector", "metrics-token", "prometheus", "grafana"}
ASKED_BY_PROMETHEUS = {"otel-collector": "otel-collector:8889"}
"""Services whose image has no program that could ask them, and where Prometheus sees whether they answer."""
VOLUMES_OF_IMAGES = {
    "apache/kafka": {"/etc/kafka/secrets", "/mnt/shared/config", "/var/lib/kafka/data"},
    "postgres": {"/var/lib/postgresql/data"},
    "prom/prometheus": {"/prometheus"},
}
"""What these images declare with VOLUME: a volume without a name, unless something else is mounted there."""
ASK = PROJECT / "docker" / "ask-airflow"
BROKERS = sorted(name for name in EXPECTED if re.fullmatch(r"kafka-\d", name))
AIRFLOW: dict[str, str] = SERVICES["airflow-scheduler"]["environment"]
DIFFERENT = {
    "AIRFLOW__API__HOST": "a container listens to its network",
    "AIRFLOW__API__PORT": "the default is published on loopback",
    "AIRFLOW__API__BASE_URL": "the address that people use is not known here",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "the one of the topology, from a secret",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": "below AIRFLOW_HOME, where the volume is",
}
"""What `switchyard up` tells Airflow and the containers do not, and why."""
PLACES = re.compile("FOLDER|FILE|URL")
EACH = pytest.mark.parametrize("name", sorted(SERVICES))


def fill_in(value: str, variables: Mapping[str, str] | None = None) -> str:
    """As compose does; without variables, as where nobody has set any."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: (variables or {}).get(found[1]) or found[2], value)


def test_the_file_keeps_to_the_schema_of_compose_files() -> None:
    """The official one, as the package check-jsonschema brings it."""
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(COMPOSE)


def test_every_variable_of_ours_is_a_setting_with_a_valid_value(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {name: fill_in(value) for name, value in AIRFLOW.items() if name.startswith("SWITCHYARD_")}
    known = {f"SWITCHYARD_{name.upper()}" for name in Settings.model_fields}
    assert ours.keys() <= known, "a variable that no setting has would be ignored without a word"
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.spare is True
    assert settings.bootstrap.split(",") == [f"{name}:9092" for name in BROKERS]
    assert settings.airflow_url == "http://airflow-api-server:8080"
    port = settings.spark_master.removeprefix("spark://").replace(":", "/")
    assert SERVICES["spark-master"]["healthcheck"]["test"][-1] == f"</dev/tcp/{port}"
    assert f"tables:{settings.root}" in SERVICES["spark-worker"]["volumes"], "executors must see the tables"


def test_airflow_is_told_what_up_tells_it() -> None:
    told = airflow_environment(Settings(), base={})
    wanted = {name: value for name, value in told.items() if name.startswith("AIRFLOW__") and name not in DIFFERENT}
    assert wanted.keys() <= AIRFLOW.keys(), "say it in docker-compose.yaml too, or say in DIFFERENT why not"
    same = {name: value for name, value in wanted.items() if not PLACES.search(name)}
    assert {name: AIRFLOW[name] for name in same} == same


def test_airflow_knows_every_option_and_takes_a_command_for_it_where_one_is_given() -> None:
    path = Path(airflow.__file__).parent / "config_templates" / "config.yml"
    sections = yaml.safe_load(path.read_text())
    for name in (name for name in AIRFLOW if name.startswith("AIRFLOW__")):
        _, section, option = name.lower().split("__")
        known = sections[section]["options"]
        if option.endswith("_cmd"):
            assert known[option.removesuffix("_cmd")]["sensitive"] is True
        else:
            assert option in known, name


def test_three_brokers_know_each_other_and_keep_three_copies() -> None:
    environments = [SERVICES[name]["environment"] for name in BROKERS]
    voters = ",".join(f"{name[-1]}@{name}:9093" for name in BROKERS)
    for name, environment in zip(BROKERS, environments, strict=True):
        assert environment["KAFKA_NODE_ID"] == name[-1]
        assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voters
        assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
        copies = {value for key, value in environment.items() if key.endswith("REPLICATION_FACTOR")}
        assert copies == {str(len(BROKERS))}
        least = {value for key, value in environment.items() if key.endswith(("MIN_ISR", "MIN_INSYNC_REPLICAS"))}
        assert least == {"2"}
    assert len({environment["CLUSTER_ID"] for environment in environments}) == 1


def test_the_topics_of_the_first_start_are_created() -> None:
    command = SERVICES["kafka-topics"]["command"][0]
    settings = Settings()
    for topic in (settings.users_topic, settings.accounts_topic, settings.control_topic):
        assert re.search(rf"^create {topic} ", command, re.M)
    assert "kafka-topics" in SERVICES["airflow-scheduler"]["depends_on"]


def test_the_workers_have_room_for_a_swap_with_a_spare_and_an_audit_beside_it() -> None:
    assert room_for_drivers({}) >= 4


def test_a_small_machine_has_room_for_a_swap_and_an_audit_beside_it() -> None:
    """Its variables are those that the file asks for, and there is no spare, so three drivers at most."""
    small = read_variables(PROJECT / "docker" / "small-machine.env")
    text = (PROJECT / "docker-compose.yaml").read_text()
    assert [name for name in small if f"${{{name}:-" not in text] == []
    assert room_for_drivers(small) >= 3
    assert small["SWITCHYARD_SPARE"] == "false"
    page = (PROJECT / "docs" / "deployment.md").read_text()
    assert [f"`{name}={value}`" for name, value in small.items() if f"`{name}={value}`" not in page] == []


def read_variables(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def room_for_drivers(variables: Mapping[str, str]) -> int:
    """How many drivers find all their executors on the workers, by cores and by memory."""

    def megabytes(value: str) -> int:
        size = fill_in(value, variables)
        return int(size[:-1]) * {"m": 1, "g": 1024}[size[-1]]

    worker = SERVICES["spark-worker"]
    cores, memory = worker["environment"]["SPARK_WORKER_CORES"], worker["environment"]["SPARK_WORKER_MEMORY"]
    executor_cores = int(fill_in(AIRFLOW["SWITCHYARD_EXECUTOR_CORES"], variables))
    executor_memory = megabytes(AIRFLOW["SWITCHYARD_EXECUTOR_MEMORY"])
    each = min(int(fill_in(cores, variables)) // executor_cores, megabytes(memory) // executor_memory)
    executors = each * int(fill_in(worker["deploy"]["replicas"], variables))
    return executors // int(fill_in(AIRFLOW["SWITCHYARD_EXECUTORS"], variables))


def test_a_worker_writes_where_its_user_may_and_no_other_worker_does() -> None:
    worker = SERVICES["spark-worker"]
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    given = re.search(r"chown -R switchyard (.+)", dockerfile)
    assert given
    places = {worker["environment"][name] for name in ("SPARK_WORKER_DIR", "SPARK_LOCAL_DIRS")}
    tops = {f"/{Path(place).parts[1]}" for place in places}
    assert tops <= set(given[1].split())
    assert not tops & {mount.split(":")[1] for mount in worker["volumes"]}, "all workers have the same volumes"
    made = re.search(r"mkdir -p (.+)", dockerfile)
    assert made
    assert places <= set(made[1].split())


def test_every_secret_is_written_once_and_only_its_owner_gets_to_it(tmp_path: Path) -> None:
    module = runpy.run_path(str(PROJECT / "docker" / "write_secrets.py"))
    folder = tmp_path / "secrets"
    assert set(module["write_secrets"](folder)) == {Path(part["file"]).name for part in COMPOSE["secrets"].values()}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert before["postgres_password"] in before["airflow_database"]
    (folder / "airflow_database").unlink()
    assert module["write_secrets"](folder) == ["airflow_database"]
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_the_services_are_the_production_parts() -> None:
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == EXPECTED


def test_the_profile_observability_adds_its_services_and_nothing_else_needs_them() -> None:
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["observability"]} == OBSERVABILITY
    assert set(SERVICES) == EXPECTED | OBSERVABILITY
    assert not any(OBSERVABILITY & set(SERVICES[name].get("depends_on", {})) for name in EXPECTED)


@EACH
def test_an_image_is_pinned_to_a_version(name: str) -> None:
    assert re.search(r":v?\d+\.\d+", SERVICES[name]["image"]), "pin the image to a version, never to latest"


def test_the_base_image_is_pinned() -> None:
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    assert re.search(r"^FROM \S+:\d+\.\d+\.\d+", dockerfile, re.M)


@EACH
def test_a_service_that_stays_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    if name in ASKED_BY_PROMETHEUS:
        scraped = yaml.safe_load((PROJECT / "docker/observability/prometheus.yaml").read_text())["scrape_configs"]
        assert any([ASKED_BY_PROMETHEUS[name]] == job["static_configs"][0]["targets"] for job in scraped)
    else:
        assert service["restart"] == "no" or service["healthcheck"]["test"]


@EACH
def test_a_health_check_costs_little_and_has_time_to_succeed_at_first(name: str) -> None:
    check = SERVICES[name].get("healthcheck")
    if check is None:
        return
    assert check["test"][0] == "CMD", "no shell around it"
    program = Path(check["test"][1]).name
    assert program in {"bash", "pg_isready", "ask-airflow", "test", "wget"}, "no JVM and no Python, every few seconds"
    assert int(check["interval"].removesuffix("s")) >= 10
    assert int(check["start_period"].removesuffix("s")) >= 120


def test_the_database_is_asked_over_tcp() -> None:
    """Its socket also answers while the first start makes the database, before that server ends."""
    check = SERVICES["postgres"]["healthcheck"]["test"]
    assert check[check.index("--host") + 1] == "localhost"


HEALTH = '{"metadatabase":{"status":"healthy"},"scheduler":{"status":"healthy","latest_scheduler_heartbeat":"t"},'
HEALTH += '"triggerer":{"status":null,"latest_triggerer_heartbeat":null},"dag_processor":{"status":"unhealthy"}}'


@contextmanager
def airflow_that_says(status: int, text: str) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "text", "part", "is_healthy"),
    [
        (200, '{"version":"3.3.2"}', (), True),
        (500, '{"version":"3.3.2"}', (), False),
        (200, HEALTH, ("scheduler",), True),
        (200, HEALTH.replace(":", ": "), ("scheduler",), True),
        (503, HEALTH, ("scheduler",), False),
        (200, HEALTH, ("triggerer",), False),
        (200, HEALTH, ("dag_processor",), False),
        (200, "", ("scheduler",), False),
    ],
)
def test_the_health_check_of_airflow(status: int, text: str, part: tuple[str, ...], is_healthy: bool) -> None:
    with airflow_that_says(status, text) as port:
        asked = subprocess.run([ASK, f"127.0.0.1:{port}", "/health", *part], timeout=10)
    assert (asked.returncode == 0) is is_healthy


def test_the_health_check_of_an_airflow_that_is_not_there() -> None:
    asked = subprocess.run([ASK, "127.0.0.1:1", "/health"], timeout=10)
    assert asked.returncode != 0


@EACH
def test_the_log_of_a_container_is_bounded(name: str) -> None:
    assert SERVICES[name]["logging"]["options"].keys() == {"max-size", "max-file"}


@EACH
def test_no_volume_is_without_a_name(name: str) -> None:
    """Such a volume outlives its container, and each new container gets another one."""
    service = SERVICES[name]
    mounts = [mount.split(":") for mount in service.get("volumes", [])]
    assert all(len(mount) > 1 for mount in mounts)
    image = service["image"].partition(":")[0]
    covered = {mount[1] for mount in mounts} | set(service.get("tmpfs", []))
    assert VOLUMES_OF_IMAGES.get(image, set()) <= covered


@EACH
def test_no_secret_is_written_into_the_file(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        if re.search(r"PASSWORD|SECRET|FERNET|SQL_ALCHEMY|TOKEN", key):
            assert "/secrets/" in value, f"{key}: give it as a file below /run/secrets"
        assert not re.search(r"://[^/\s]+:[^/\s]+@", str(value)), f"{key} contains a password"


@EACH
def test_a_service_waits_only_for_services_that_exist_and_secrets_that_are_declared(name: str) -> None:
    assert set(SERVICES[name].get("depends_on", {})) <= set(SERVICES)
    assert set(SERVICES[name].get("secrets", [])) <= set(COMPOSE["secrets"])


@EACH
def test_a_volume_is_declared_and_a_file_is_there_and_read_only(name: str) -> None:
    mounts = [mount.split(":") for mount in SERVICES[name].get("volumes", []) if ":" in mount]
    files = [mount for mount in mounts if mount[0].startswith("./")]
    assert {mount[0] for mount in mounts if mount not in files} <= set(COMPOSE["volumes"])
    assert all((PROJECT / mount[0]).exists() and mount[2:] == ["ro"] for mount in files)


def test_secrets_come_from_files_that_git_ignores() -> None:
    assert "secrets/" in (PROJECT / "docker" / ".gitignore").read_text()
    for secret in COMPOSE["secrets"].values():
        assert secret["file"].startswith("docker/secrets/")


def test_every_module_that_is_run_exists() -> None:
    paths = [*(PROJECT / "docker").rglob("*"), PROJECT / "docker-compose.yaml"]
    texts = [path.read_text() for path in paths if path.is_file() and "secrets" not in path.parts]
    run = {name for text in texts for name in re.findall(r"\bpython3?[\s,\"']+-m[\s,\"']+(switchyard[\w.]*)", text)}
    assert run >= {"switchyard.drivers.jars", "switchyard.airflow.initialise"}
    assert [name for name in sorted(run) if find_spec(name) is None] == []


@EACH
def test_published_ports_are_on_loopback(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))
