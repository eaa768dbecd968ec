"""What a command imports costs more than what it does, so those that only read tables import little."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from switchyard.layout import Layout
from switchyard.tables.progress import report
from tests.histories import make_active, progress_row

HEAVY = {"airflow", "confluent_kafka", "duckdb", "httpx", "pandas", "pyspark"}
RUN = "import sys; from switchyard.cli.main import main; main(); print(*sys.modules, file=sys.stderr)"


@pytest.mark.parametrize("command", ["status", "history", "logs", "tail final_ui"])
def test_a_command_that_reads_tables_imports_nothing_heavy(command: str, tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "root"))
    make_active(layout)
    report(layout, progress_row(at=datetime.now(UTC)))
    environment = {**os.environ, "SWITCHYARD_ROOT": layout.root}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command.split()], env=environment, capture_output=True, text=True
    )
    imported = done.stderr.split()
    assert "deltalake" in imported, done.stderr
    assert HEAVY & set(imported) == set()
