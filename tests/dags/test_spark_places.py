"""The Spark connection decides where generations run: the command that each kind of it resolves to.

Nothing is submitted. Local and standalone masters run in tests/integration and tests/topology; YARN and Kubernetes
are not to be had here, so what is checked is what the provider would be told.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from switchyard.drivers.submission import submit_arguments
from switchyard.errors import InputError
from switchyard.layout import PROJECT
from switchyard.settings import Settings
from switchyard.swap.history import Request
from tests.dags.conftest import DAGS, load_dag
from tests.specs import TARGET

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import DAG

    from switchyard.airflow.generation_operator import GenerationSubmitOperator
    from switchyard.airflow.spark_submit import SparkSubmit

REQUEST = Request(1, "swap-7", 7, TARGET, "latest", "test", datetime.now(UTC))
KUBERNETES = "k8s://https://cluster:6443"


def connect(patch: pytest.MonkeyPatch, master: str, extra: Mapping[str, str] | None = None) -> None:
    described = {"conn_type": "spark", "host": master, "extra": dict(extra or {})}
    patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(described))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SWITCHYARD_ROOT", "s3://bucket/root")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    return Settings(home=tmp_path, kafka_properties=Path("/run/secrets/kafka"), executors=5)


@pytest.fixture
def with_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the provider for Kubernetes were installed; no client of it is used to make a command."""
    from airflow.providers.apache.spark.hooks import spark_submit

    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)


def stream_task(dags: dict[str, DAG]) -> GenerationSubmitOperator:
    task: Any = dags["switchyard_generation"].get_task("stream")
    return task


def resolve(dags: dict[str, DAG], settings: Settings) -> tuple[SparkSubmit, SparkSubmitHook, list[str]]:
    """What the task asks for, what the provider makes of it, and the command."""
    from switchyard.airflow.generation_operator import name_driver

    task = stream_task(dags)
    submit = task.read_submit(settings)
    properties = settings.workspace.kafka_properties(7, 1) if submit.place.is_here else settings.kafka_properties
    assert properties is not None
    hook = submit.make_hook(name_driver(7), submit_arguments(7, TARGET, "latest", properties))
    return submit, hook, hook._build_spark_submit_command(task.application)


def conf_of(command: list[str]) -> dict[str, str]:
    pairs = [value for name, value in itertools.pairwise(command) if name == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize(
    ("master", "bound"),
    [("local[2]", None), ("spark://master:7077", "spark.cores.max"), ("yarn", "spark.executor.instances")],
)
def test_in_client_mode_the_driver_is_here_with_its_jars_and_its_own_kafka_settings(
    dags: dict[str, DAG], settings: Settings, monkeypatch: pytest.MonkeyPatch, master: str, bound: str | None
) -> None:
    connect(monkeypatch, master)
    submit, _, command = resolve(dags, settings)
    conf = conf_of(command)
    assert command[:3] == ["spark-submit", "--master", master]
    assert submit.place.is_here
    assert "--deploy-mode" not in command
    assert command[-1].startswith(str(settings.workspace.secrets / "kafka-7-"))
    assert conf["spark.driver.extraClassPath"].startswith("/")
    assert bound is None or conf[bound] == "5"
    assert (bound is None) == ("spark.executor.cores" not in conf)
    assert "hunter2" not in " ".join(command)


@pytest.mark.parametrize(
    ("master", "extra", "variables", "wait"),
    [
        (
            "yarn",
            {"yarn_resourcemanager_webapp_address": "http://rm:8088"},
            "spark.yarn.appMasterEnv",
            "spark.yarn.submit.waitAppCompletion",
        ),
        (
            KUBERNETES,
            {"namespace": "switchyard"},
            "spark.kubernetes.driverEnv",
            "spark.kubernetes.submission.waitAppCompletion",
        ),
    ],
    ids=["yarn", "kubernetes"],
)
def test_in_cluster_mode_the_driver_finds_everything_on_its_own_machine_and_the_provider_tracks_it(
    dags: dict[str, DAG],
    settings: Settings,
    with_kubernetes: None,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    extra: dict[str, str],
    variables: str,
    wait: str,
) -> None:
    connect(monkeypatch, master, {**extra, "deploy-mode": "cluster"})
    submit, hook, command = resolve(dags, settings)
    conf = conf_of(command)
    assert not submit.place.is_here
    assert command[command.index("--deploy-mode") + 1] == "cluster"
    assert command[-2:] == ["--kafka-properties", "/run/secrets/kafka"]
    assert {jar.partition(":///")[0] for jar in conf["spark.jars"].split(",")} == {"local"}
    assert any("hadoop-aws" in jar for jar in conf["spark.jars"].split(","))
    assert conf["spark.executor.instances"] == "5"
    assert not [name for name in conf if name.startswith("spark.driver.extra")], "paths and archives of this machine"
    assert conf[f"{variables}.SWITCHYARD_ROOT"] == "s3://bucket/root"
    assert conf[f"{variables}.AWS_REGION"] == "eu-central-1"
    assert "hunter2" not in " ".join(command)
    assert conf[wait] == "false", "spark-submit ends, and the id of the driver is kept"
    assert hook._should_track_driver_via_k8s_api() or hook._should_track_yarn_application_via_rm_api()
    assert stream_task(dags).durable is True


@pytest.mark.parametrize(
    ("failure", "code"),
    [(None, 0), (RuntimeError("failed (phase=Failed exit_code=75 reason=Error)"), 75), (RuntimeError("gone"), 1)],
)
def test_the_end_of_a_driver_elsewhere_is_judged_like_one_of_a_driver_here(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, failure: Exception | None, code: int
) -> None:
    """No such cluster runs here: what the provider's operator does is replaced by how it ends."""
    from switchyard.airflow import generation_operator, generation_tasks

    def run(self: Any, context: Any) -> None:
        applications.append(self.application)
        if failure is not None:
            raise failure

    applications: list[str] = []
    judged: list[int | None] = []
    monkeypatch.setattr(generation_operator.SparkSubmitOperator, "execute", run)
    monkeypatch.setattr(generation_operator, "load_settings", lambda: settings)
    monkeypatch.setattr(generation_operator, "read_kafka", lambda conn_id: {})
    monkeypatch.setattr(generation_tasks, "judge_end", lambda settings, request, exit_code: judged.append(exit_code))
    monkeypatch.setattr(generation_tasks, "admit_run", lambda settings, kafka, context: REQUEST)
    connect(monkeypatch, "yarn", {"deploy-mode": "cluster"})
    task: Any = load_dag(DAGS / "switchyard_generation.py").get_task("stream")
    with pytest.raises(RuntimeError) if failure else contextlib.nullcontext():
        task.execute({})
    assert judged == [code]
    assert applications == [f"local://{PROJECT / 'jobs' / 'stream_generation.py'}"]


def test_jobs_that_bring_back_a_result_run_here_also_then(
    dags: dict[str, DAG], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "yarn", {"deploy-mode": "cluster"})
    audit: Any = next(task for task in dags["switchyard_audit"].tasks if hasattr(task, "job_arguments"))
    assert audit.read_submit(settings).place.is_here
    build: Any = dags["switchyard_backfill"].get_task("build")
    assert build.read_submit(settings).place.is_here


@pytest.mark.parametrize(
    ("master", "mode", "kafka", "sentence"),
    [
        ("spark://master:7077", "cluster", Path("/k"), "set its deploy mode to client"),
        ("local[2]", "cluster", Path("/k"), "set its deploy mode to client"),
        ("yarn", "cluster", None, "SWITCHYARD_KAFKA_PROPERTIES"),
        (KUBERNETES, "client", None, "apache-airflow-providers-cncf-kubernetes"),
    ],
)
def test_a_place_where_no_driver_can_start_is_refused_with_what_to_do(
    dags: dict[str, DAG],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    mode: str,
    kafka: Path | None,
    sentence: str,
) -> None:
    connect(monkeypatch, master, {"deploy-mode": mode})
    with pytest.raises(InputError, match=sentence):
        resolve(dags, Settings(root=str(tmp_path), kafka_properties=kafka))
