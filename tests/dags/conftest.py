"""The DAG files, loaded as Airflow loads them, with a separate home. No database is needed to parse."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow.sdk import DAG

DAGS = Path(__file__).resolve().parents[2] / "dags"


def dag_files() -> list[Path]:
    return sorted(path for path in DAGS.glob("*.py") if not path.name.startswith("_"))


@pytest.fixture(scope="session", autouse=True)
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set before the first import of airflow, which writes its configuration there."""
    home = tmp_path_factory.mktemp("airflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(home))
        patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
        patch.setenv("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
        yield home


@pytest.fixture(scope="session")
def dags(airflow_home: Path) -> dict[str, DAG]:
    """Every DAG, by the stem of the file that defines it."""
    return {path.stem: load_dag(path) for path in dag_files()}


def load_dag(path: Path) -> DAG:
    from airflow.sdk import DAG

    spec = spec_from_file_location(f"dag_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [value for value in vars(module).values() if isinstance(value, DAG)]
    assert len(found) == 1, f"{path.name} must keep exactly one DAG in a module variable, it keeps {len(found)}"
    return found[0]
