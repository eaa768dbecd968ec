"""The spark-submit call of a generation, as data."""

from __future__ import annotations

from pathlib import Path

from switchyard.submission import (
    GenerationRequest,
    spark_conf,
    submit_arguments,
    submit_environment,
)

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]
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


def test_local_master_stays_on_loopback() -> None:
    assert spark_conf("local[2]", [])["spark.driver.bindAddress"] == "127.0.0.1"


def test_local_master_has_the_jars_and_the_archive_in_its_own_jvm() -> None:
    conf = spark_conf("local[2]", JARS, Path("/cache/driver.jsa"))
    assert conf["spark.driver.extraClassPath"] == "/jars/a.jar:/jars/b.jar"
    assert conf["spark.driver.extraJavaOptions"] == "-XX:SharedArchiveFile=/cache/driver.jsa"
    assert "spark.driver.extraJavaOptions" not in spark_conf("local[2]", JARS)


def test_cluster_master_reaches_the_driver_and_gives_the_jars_to_executors() -> None:
    conf = spark_conf("spark://master:7077", JARS, Path("/cache/driver.jsa"))
    assert conf == {"spark.jars": "/jars/a.jar,/jars/b.jar"}


def test_environment_uses_one_python_and_the_found_java() -> None:
    env = submit_environment({"PATH": "/usr/bin"}, Path("/venv/bin/python"), Path("/opt/java"))
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == "/venv/bin/python"
    assert env["JAVA_HOME"] == "/opt/java"
    assert env["PATH"] == "/venv/bin:/usr/bin"
