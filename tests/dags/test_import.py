"""Airflow parses DAG files all day long: importing one must be cheap and must not load Spark or delta-rs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dags.conftest import DAGS, dag_files

HEAVY = ("pyspark", "deltalake", "confluent_kafka", "pandas", "pyarrow")
MOST_SECONDS = 0.5

# What Airflow and its Spark provider cost is not ours to save: they are imported first.
# Processor time, because other tests may share the machine.
PROBE = """
import json, runpy, sys, time
import airflow.sdk, airflow.providers.apache.spark.operators.spark_submit
began = time.process_time()
runpy.run_path(sys.argv[1])
seconds = time.process_time() - began
print(json.dumps({"seconds": seconds, "heavy": [name for name in sys.argv[2:] if name in sys.modules]}))
"""


def probe(path: Path) -> tuple[float, list[str]]:
    answer = subprocess.run(
        [sys.executable, "-c", PROBE, str(path), *HEAVY], capture_output=True, text=True, cwd=DAGS.parent
    )
    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout.splitlines()[-1])
    return seen["seconds"], seen["heavy"]


@pytest.mark.parametrize("path", dag_files(), ids=lambda path: path.stem)
def test_import_is_light(path: Path) -> None:
    seconds, heavy = min(probe(path) for _ in range(2))
    assert heavy == [], f"{path.name}: import {heavy} inside the task functions that need them"
    assert seconds < MOST_SECONDS, f"{path.name}: its own import took {seconds:.2f} s of at most {MOST_SECONDS} s"
