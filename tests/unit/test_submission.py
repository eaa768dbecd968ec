"""The spark-submit call of a generation, as data."""

from __future__ import annotations

from pathlib import Path

from switchyard.submission import (
    GenerationRequest,
    join_jars,
    spark_conf,
    submit_arguments,
    submit_environment,
)

REQUEST = GenerationRequest(7, "users-v2", "accounts", "asof", "2026-01-31T08:00:00Z")


def test_arguments_name_the_kafka_settings_by_path_only() -> None:
    assert submit_arguments(REQUEST, Path("/home/x/secrets/kafka-7.properties")) == [
        "--generation",
        "7",
        "--users-topic",
        "users-v2",
        "--accounts-topic",
        "accounts",
        "--join-type",
        "asof",
        "--start",
        "2026-01-31T08:00:00Z",
        "--kafka-properties",
        "/home/x/secrets/kafka-7.properties",
    ]


def test_jars_are_one_comma_separated_word() -> None:
    assert join_jars([Path("/jars/a.jar"), Path("/jars/b.jar")]) == "/jars/a.jar,/jars/b.jar"


def test_local_master_stays_on_loopback() -> None:
    assert spark_conf("local[2]")["spark.driver.bindAddress"] == "127.0.0.1"


def test_cluster_master_reaches_the_driver() -> None:
    assert "spark.driver.bindAddress" not in spark_conf("spark://master:7077")


def test_environment_uses_one_python_and_the_found_java() -> None:
    env = submit_environment({"PATH": "/usr/bin"}, Path("/venv/bin/python"), Path("/opt/java"))
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == "/venv/bin/python"
    assert env["JAVA_HOME"] == "/opt/java"
    assert env["PATH"] == "/venv/bin:/usr/bin"
