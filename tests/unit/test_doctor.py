"""What the doctor says about this machine; tests/services has what it says about brokers."""

from __future__ import annotations

import socket
from importlib.metadata import version
from pathlib import Path

import pytest

from switchyard.errors import SwitchyardError
from switchyard.local import doctor, loopback
from switchyard.local.doctor import Finding, _answers, describe_jars, examine, judge_airflow
from switchyard.settings import Settings


def test_a_broker_that_listens_answers() -> None:
    with socket.create_server((loopback.HOST, 0)) as server:
        assert _answers(f" {loopback.HOST}:{server.getsockname()[1]}")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:1"])
def test_an_address_where_nobody_is_does_not(address: str) -> None:
    assert not _answers(address)


def test_jars_of_another_version_than_their_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [Path(f"spark-sql-kafka-0-10_2.13-{version('pyspark')}.jar"), Path("kafka-clients-3.9.2.jar")]
    delta = Path(f"delta-spark_4.2_2.13-{version('delta-spark')}.jar")
    broker = [Path("kafka-clients-4.3.1.jar"), Path("kafka-server-4.3.1.jar"), Path("kafka-server-common-4.3.0.jar")]
    said = describe_jars([*used, delta], broker)
    assert said == (
        f"Spark {version('pyspark')} with Kafka's client 3.9.2, Delta {version('delta-spark')}, Kafka broker 4.3.1"
    )
    for jars in (used, [*used, Path("delta-spark_4.2_2.13-1.0.0.jar")]):
        with pytest.raises(SwitchyardError, match=r"^the jar delta-spark is of version (none|1\.0\.0), .*: run `make"):
            describe_jars(jars, broker)


def findings(settings: Settings) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(settings)}


def test_a_machine_on_which_nothing_runs(tmp_path: Path) -> None:
    ports = {"airflow_port": loopback.pick_free_port(), "kafka_port": loopback.pick_free_port()}
    found = findings(Settings(root=str(tmp_path), **ports))
    assert [check for check, finding in found.items() if not finding.ok] == ["running"]
    assert found["running"].remedy == "start it with `switchyard up`"
    assert found["python"].finding.startswith("Python 3.")
    assert found["java"].finding.startswith("Java ")
    assert "GiB free at" in found["disk"].finding


def test_what_is_wrong_on_this_machine_says_how_to_mend_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE_GIB", 10**6)
    with socket.create_server((loopback.HOST, 0)) as server:
        found = findings(Settings(root=str(tmp_path), airflow_port=server.getsockname()[1]))
    assert not found["disk"].ok
    assert found["disk"].remedy == "make room or set SWITCHYARD_ROOT elsewhere"
    assert not found["airflow port"].ok
    assert found["airflow port"].remedy == "stop what uses it or set SWITCHYARD_AIRFLOW_PORT to another port"


def test_what_airflow_says_about_its_parts() -> None:
    well = {name: {"status": "healthy"} for name in ("metadatabase", "scheduler", "triggerer", "dag_processor")}
    assert all(finding.ok for finding in judge_airflow(well))
    ill = well | {"scheduler": {"status": "unhealthy"}, "metadatabase": {"status": "unhealthy"}, "triggerer": None}
    found = {finding.check: finding for finding in judge_airflow(ill)}
    failing = ["airflow database", "airflow scheduler", "airflow triggerer"]
    assert [check for check, finding in found.items() if not finding.ok] == failing
    assert all("`switchyard down` and `up`" in found[check].remedy for check in failing)


def test_nobody_at_the_ports_of_a_broker_of_ones_own_and_of_airflow(tmp_path: Path) -> None:
    settings = Settings(root=str(tmp_path), kafka_bootstrap="127.0.0.1:1", airflow_port=loopback.pick_free_port())
    found = findings(settings)
    for check in ("kafka login", "control topic"):
        assert found[check].finding.startswith("no broker answers at 127.0.0.1:1")
        assert found[check].remedy == "start it, or set SWITCHYARD_KAFKA_BOOTSTRAP"
    assert "topics" not in found
    assert found["airflow"].finding.startswith("Airflow does not answer at http://127.0.0.1:")
    assert found["tables"].ok
    assert not found["generation"].ok
