"""The spark-submit call of a generation, as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.drivers.submission import (
    bind_environment,
    spark_conf,
    submit_arguments,
    submit_environment,
)
from switchyard.policies import Executors, Target

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]
TARGET = Target("users-v2", "accounts", "asof")


def test_arguments_name_the_kafka_settings_by_path_only() -> None:
    assert submit_arguments(7, TARGET, "2026-01-31T08:00:00Z", Path("/home/x/secrets/kafka-7.properties")) == [
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
    assert bind_environment("local[2]") == {"SPARK_LOCAL_IP": "127.0.0.1"}
    assert bind_environment("spark://master:7077") == {}


def test_local_master_has_the_jars_and_the_archive_in_its_own_jvm() -> None:
    conf = spark_conf("local[2]", JARS, Path("/cache/driver.jsa"))
    assert conf["spark.driver.extraClassPath"] == "/jars/a.jar:/jars/b.jar"
    assert conf["spark.driver.extraJavaOptions"] == "-XX:SharedArchiveFile=/cache/driver.jsa"
    assert "spark.driver.extraJavaOptions" not in spark_conf("local[2]", JARS)
    with_options = spark_conf("local[2]", JARS, Path("/a.jsa"), java_options="-Xint -Xss1m")
    assert with_options["spark.driver.extraJavaOptions"] == "-Xint -Xss1m -XX:SharedArchiveFile=/a.jsa"


def test_a_driver_of_a_standalone_master_is_on_this_machine_and_gives_the_jars_to_its_executors() -> None:
    conf = spark_conf("spark://master:7077", JARS, Path("/cache/driver.jsa"), executors=Executors(3, 2, "4g"))
    assert conf == {
        "spark.driver.extraClassPath": "/jars/a.jar:/jars/b.jar",
        "spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=/cache/driver.jsa",
        "spark.jars": "/jars/a.jar,/jars/b.jar",
        "spark.executor.cores": "2",
        "spark.executor.memory": "4g",
        "spark.cores.max": "6",
    }


@pytest.mark.parametrize("master", ["yarn", "k8s://https://cluster:6443"])
def test_other_clusters_count_executors(master: str) -> None:
    conf = Executors(3, 2, "4g").conf(master)
    assert conf == {"spark.executor.cores": "2", "spark.executor.memory": "4g", "spark.executor.instances": "3"}


def test_a_local_master_has_no_executors() -> None:
    assert not [name for name in spark_conf("local[2]", JARS, executors=Executors()) if "executor." in name]


def test_the_jars_of_an_object_store_stay_out_of_the_class_path_that_the_archive_was_made_for() -> None:
    conf = spark_conf("local[2]", JARS, Path("/cache/driver.jsa"), [Path("/jars/s3.jar")])
    assert conf["spark.driver.extraClassPath"] == "/jars/a.jar:/jars/b.jar"
    assert conf["spark.jars"] == "/jars/s3.jar"
    assert (
        spark_conf("spark://master:7077", JARS, None, [Path("/s.jar")])["spark.jars"]
        == "/jars/a.jar,/jars/b.jar,/s.jar"
    )


def test_environment_uses_one_python_and_the_found_java() -> None:
    env = submit_environment({"PATH": "/usr/bin"}, Path("/venv/bin/python"), Path("/opt/java"))
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == "/venv/bin/python"
    assert env["JAVA_HOME"] == "/opt/java"
    assert env["PATH"] == "/venv/bin:/usr/bin"
