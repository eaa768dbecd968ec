"""What the doctor says about this machine; tests/services has what it says about brokers."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from switchyard.drivers import java
from switchyard.drivers.processes import boot_id
from switchyard.drivers.supervisor_state import State, find_supervisor, supervisor_arguments, write_state
from switchyard.errors import SwitchyardError
from switchyard.layout import Layout
from switchyard.local import doctor, loopback
from switchyard.local.doctor import Finding, _answers, describe_jars, examine, judge_airflow
from switchyard.settings import Settings
from switchyard.tables.logs import write_log
from tests.unit.drivers.stand_in import stand_in
from tests.waiting import eventually


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


def test_what_is_wrong_on_this_machine_says_how_to_repair_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE_GIB", 10**6)
    with socket.create_server((loopback.HOST, 0)) as server:
        found = findings(Settings(root=str(tmp_path), airflow_port=server.getsockname()[1]))
    assert not found["disk"].ok
    assert found["disk"].remedy == "make room or set SWITCHYARD_ROOT elsewhere"
    assert not found["airflow port"].ok
    assert found["airflow port"].remedy == "stop what uses it or set SWITCHYARD_AIRFLOW_PORT to another port"


def test_a_machine_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_candidates", lambda: iter([tmp_path / "no-java"]))
    found = findings(Settings(root=str(tmp_path)))["java"]
    assert (found.ok, found.finding[:47]) == (False, "Java 17 or 21 is needed and none was found: ins")
    assert "set JAVA_HOME" in found.remedy


def test_a_kafka_port_that_another_program_has(tmp_path: Path) -> None:
    with socket.create_server((loopback.HOST, 0)) as server:
        port = server.getsockname()[1]
        found = findings(Settings(root=str(tmp_path), kafka_port=port))["kafka port"]
    assert (found.ok, found.finding) == (False, f"{port} is taken by another program")
    assert found.remedy == "stop what uses it or set SWITCHYARD_KAFKA_PORT to another port"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Settings]:
    """A supervisor, as far as a look from outside can tell. Nothing answers at its ports."""
    ports = {"airflow_port": loopback.pick_free_port(), "kafka_port": loopback.pick_free_port()}
    settings = Settings(root=str(tmp_path), spare=True, **ports)
    command = [sys.executable, "-c", "import time; time.sleep(600)", *supervisor_arguments(settings.workspace, False)]
    process = subprocess.Popen(command)
    settings.workspace.run.mkdir(parents=True)
    write_state(settings.workspace, State(pid=process.pid, boot=boot_id(), phase="ready"))
    # A process that has just been started has no command line for a moment.
    eventually(lambda: find_supervisor(settings.workspace))
    yield settings
    process.kill()
    process.wait()


def test_ports_of_a_running_switchyard(running: Settings) -> None:
    eventually(lambda: "running" not in findings(running), 20)
    found = findings(running)
    for check in ("airflow port", "kafka port"):
        assert not found[check].ok
        assert found[check].finding.endswith("is not in use by Switchyard")
    for check, log in (("airflow port", "process-logs/api-server.log"), ("kafka port", "broker/broker.log")):
        assert found[check].remedy == f"read {running.workspace.home / log}, then `switchyard down` and `up`"
    assert not found["kafka login"].ok
    with socket.create_server((loopback.HOST, running.kafka_port)):
        well = findings(running)["kafka port"]
    assert (well.ok, well.remedy) == (True, "")


def test_a_spare_that_waits_and_one_that_hangs(running: Settings) -> None:
    assert findings(running)["spare"].finding == "there is no spare driver now"
    with stand_in(running.workspace) as (hand_off, _):
        found = findings(running)["spare"]
        assert (found.ok, found.finding) == (True, "a spare driver is ready")
        os.utime(hand_off.pulse, (1, 1))
        found = findings(running)["spare"]
        assert not found.ok
        assert found.remedy == "it hangs: see the log of switchyard_spare; switchyard_health ends it"


def test_an_object_store_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "made-up")
    found = findings(Settings(root="s3://bucket/root", home=tmp_path))["object store"]
    assert not found.ok
    assert found.finding.startswith("the object store (http://127.0.0.1:1) cannot be used: it does not answer: check")
    assert found.remedy == "check AWS_ENDPOINT_URL and the network, and look whether it runs"


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root, as which tests may run, can write into every folder.
    monkeypatch.setattr(os, "access", lambda folder, mode: not (mode == os.W_OK and Path(folder) == tmp_path))
    found = findings(Settings(root=str(tmp_path)))["disk"]
    assert (found.ok, found.finding.partition(":")[0]) == (False, f"{tmp_path} cannot be written")
    assert found.remedy == "change its owner or set SWITCHYARD_ROOT elsewhere"


@pytest.mark.parametrize(
    ("error", "finding", "remedy"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            "this machine refuses what the check needs: Permission denied at /x",
            "give the user that runs Switchyard the right to read and write below {home}, or set SWITCHYARD_ROOT",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x"),
            "this machine refuses what the check needs: No space left on device at /x",
            "make room at {home}",
        ),
        (
            TimeoutError("timed out"),
            "this machine refuses what the check needs: timed out",
            "look at that file or address and at the process logs below {home}, then `switchyard down` and `up`",
        ),
        (
            SwitchyardError("cannot read it: gone; is the broker up, and is the connection kafka_default, right?"),
            "cannot read it: gone; is the broker up, and is the connection kafka_default, right?",
            "start the broker, or correct the address and the login in that connection",
        ),
        (
            SwitchyardError("the Kafka setting sasl.password is missing: PLAIN needs it (connection kafka_control)"),
            "the Kafka setting sasl.password is missing: PLAIN needs it (connection kafka_control)",
            "correct this setting of the connection kafka_control; docs/security.md says what it may be",
        ),
        (
            SwitchyardError("it failed"),
            "it failed",
            "read the process logs below the root, then `switchyard down` and `up`",
        ),
    ],
)
def test_every_failure_of_a_check_says_what_to_do(tmp_path: Path, error: Exception, finding: str, remedy: str) -> None:
    def fail() -> str:
        raise error

    found = doctor._guard(Settings(root=str(tmp_path)), "some check", fail)
    assert found == Finding("some check", False, finding, remedy.format(home=tmp_path))


def test_a_failure_that_cannot_be_logged_is_a_failed_check_too(tmp_path: Path) -> None:
    def break_down() -> str:
        raise KeyError("hunter2")

    # A file where the folder of the logs belongs, which stops root too.
    (tmp_path / "process-logs").touch()
    found = doctor._guard(Settings(root=str(tmp_path)), "jars", break_down)
    assert found.finding.startswith("this machine refuses what the check needs: ")
    assert str(tmp_path / "process-logs") in found.finding
    assert not found.ok
    assert found.remedy


def test_a_table_that_cannot_be_opened_does_not_stop_the_other_checks(running: Settings) -> None:
    layout = Layout(running.root)
    for name in ("swap_history", "status"):
        log = Path(layout.table(name)) / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text("no commit\n")
    found = findings(running)
    assert not found["tables"].ok
    assert found["tables"].finding.startswith(f"the table status at {layout.table('status')} cannot be opened (")
    assert found["tables"].remedy.startswith("restore it from a copy")
    assert not found["generation"].ok
    assert found["generation"].remedy == "read that log"
    assert "spare" in found


def test_tables_that_are_well(running: Settings) -> None:
    write_log(Layout(running.root), "something")
    found = findings(running)["tables"]
    assert (found.ok, found.finding.partition(" tables")[0]) == (True, "1 of 12")


def test_a_check_that_raises_anything_is_a_failed_check_with_a_sentence(tmp_path: Path) -> None:
    def break_down() -> str:
        raise KeyError("hunter2")

    found = doctor._guard(Settings(root=str(tmp_path)), "jars", break_down)
    log = tmp_path / "process-logs" / "cli.log"
    assert (found.check, found.ok, found.remedy) == ("jars", False, "read that log")
    assert found.finding.endswith(f"(all of it in {log})")
    assert "hunter2" not in found.finding
    assert "KeyError" in log.read_text()


def test_what_airflow_says_about_its_parts() -> None:
    well = {name: {"status": "healthy"} for name in ("metadatabase", "scheduler", "triggerer", "dag_processor")}
    logs = Path("/logs")
    assert all(finding.ok and not finding.remedy for finding in judge_airflow(well, logs))
    ill = well | {"scheduler": {"status": "unhealthy"}, "metadatabase": {"status": "unhealthy"}, "triggerer": None}
    found = {finding.check: finding for finding in judge_airflow(ill, logs)}
    failing = ["airflow database", "airflow scheduler", "airflow triggerer"]
    assert [check for check, finding in found.items() if not finding.ok] == failing
    assert all("`switchyard down` and `up`" in found[check].remedy for check in failing)
    assert found["airflow scheduler"].remedy.startswith("read /logs/scheduler.log, then")
    ill = well | {"dag_processor": {"status": "unhealthy"}}
    (found_ill,) = [finding for finding in judge_airflow(ill, logs) if not finding.ok]
    remedy = "read /logs/dag-processor.log, then `switchyard down` and `up`"
    assert found_ill == Finding("airflow dag processor", False, "unhealthy", remedy)


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


def test_an_airflow_elsewhere_that_does_not_answer(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{loopback.pick_free_port()}"
    found = findings(Settings(root=str(tmp_path), kafka_bootstrap="127.0.0.1:1", airflow_url=f"{url}/"))
    assert "airflow port" not in found
    assert found["airflow"].finding == f"Airflow does not answer at {url}"
    assert found["airflow"].remedy == "look whether its API server runs, or correct SWITCHYARD_AIRFLOW_URL"


def test_what_an_airflow_elsewhere_says_about_its_parts() -> None:
    ill = {name: {"status": "unhealthy"} for name in ("metadatabase", "scheduler", "triggerer", "dag_processor")}
    remedies = [finding.remedy for finding in judge_airflow(ill, None)]
    assert remedies[0] == "check that it runs and has disk space, then start that part again"
    assert set(remedies[1:]) == {"read its log, then start that part again"}
