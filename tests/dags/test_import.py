"""Airflow parses DAG files all day long, and every process of it loads the plugin, also those that fork.

Importing one must be cheap and must not load Spark or delta-rs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from switchyard.layout import PROJECT
from tests.dags.conftest import DAGS, dag_files

FILES = [*dag_files(), PROJECT / "plugins" / "switchyard_plugin.py"]
HEAVY = ("pyspark", "deltalake", "confluent_kafka", "pandas", "pyarrow")
MOST_SECONDS = 0.5

# What Airflow and its Spark provider cost is not ours to save: they are imported first, once for all files. Each file
# is then imported in a separate process. Processor time, because other tests may share the machine.
PROBE = """
import json, os, runpy, sys, time
import airflow.sdk, airflow.providers.apache.spark.operators.spark_submit
files, heavy = map(json.loads, sys.argv[1:])
for path in files * 2:
    if os.fork() == 0:
        began = time.process_time()
        runpy.run_path(path)
        seconds = time.process_time() - began
        print(json.dumps([path, seconds, [name for name in heavy if name in sys.modules]]), flush=True)
        os._exit(0)
    os.wait()
"""
Probe = tuple[str, float, list[str]]


@pytest.fixture(scope="module")
def probes() -> tuple[list[Probe], str]:
    """What was seen of each file, twice, and the errors of all."""
    arguments = [json.dumps([str(path) for path in FILES]), json.dumps(HEAVY)]
    answer = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, cwd=DAGS.parent)
    lines = [line for line in answer.stdout.splitlines() if line.startswith("[")]
    return [(path, seconds, heavy) for path, seconds, heavy in map(json.loads, lines)], answer.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_import_is_light(path: Path, probes: tuple[list[Probe], str]) -> None:
    seen, errors = probes
    tries = [(seconds, heavy) for file, seconds, heavy in seen if file == str(path)]
    assert len(tries) == 2, errors
    seconds, heavy = min(tries)
    assert heavy == [], f"{path.name}: import {heavy} inside the task functions that need them"
    assert seconds < MOST_SECONDS, f"{path.name}: its own import took {seconds:.2f} s of at most {MOST_SECONDS} s"
