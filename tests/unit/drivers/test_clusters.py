"""What a driver on another machine is told, and what is understood of its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.drivers.clusters import elsewhere_environment, find_exit_code, to_local


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        ("Spark application spark-1 failed (phase=Failed exit_code=75 reason=Error)", 75),
        ("User application exited with status 143", 143),
        ("Container exited with a non-zero exit code: 137", 137),
        ("Spark application spark-1 failed (phase=Failed exit_code=0 reason=None)", 1),
        ("K8s API unreachable after 3 consecutive errors while polling spark-1; giving up.", 1),
    ],
)
def test_the_exit_code_is_in_what_the_cluster_says(failure: str, code: int) -> None:
    assert find_exit_code(failure) == code


def test_settings_go_along_and_logins_do_not() -> None:
    base = {
        "SWITCHYARD_ROOT": "s3://bucket",
        "AWS_REGION": "eu-central-1",
        "AWS_SHARED_CREDENTIALS_FILE": "/run/secrets/aws",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_SESSION_TOKEN": "hunter3",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://airflow:hunter4@postgres/airflow",
        "PATH": "/bin",
    }
    told = elsewhere_environment(base, Path("/venv/bin/python"))
    assert told.keys() - {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONUNBUFFERED"} == {
        "SWITCHYARD_ROOT",
        "AWS_REGION",
        "AWS_SHARED_CREDENTIALS_FILE",
    }


def test_a_file_of_the_other_machine_is_not_sent_there() -> None:
    assert to_local(Path("/opt/jars/a.jar")) == "local:///opt/jars/a.jar"
