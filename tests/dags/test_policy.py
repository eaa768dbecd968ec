"""What every DAG of the project must offer to the person who has to run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.dags.conftest import dag_files

if TYPE_CHECKING:
    from airflow.sdk import DAG

RUNBOOK = ("What it does", "When it runs", "Is it safe to run again", "When it fails")
each_dag = pytest.mark.parametrize("path", dag_files(), ids=lambda path: path.stem)


@each_dag
def test_dag_id_is_the_file_stem(path: Path, dags: dict[str, DAG]) -> None:
    assert dags[path.stem].dag_id == path.stem, f"set dag_id=Path(__file__).stem in {path.name}"


@each_dag
@pytest.mark.parametrize("part", RUNBOOK)
def test_docs_are_a_runbook(path: Path, part: str, dags: dict[str, DAG]) -> None:
    docs = dags[path.stem].doc_md or ""
    assert part in docs, (
        f"{path.name}: its docstring is the runbook shown in the UI; add a paragraph '**{part}**' to it "
        "and pass dag_arguments(__doc__) to @dag"
    )


@each_dag
def test_has_tags_and_owner(path: Path, dags: dict[str, DAG]) -> None:
    dag = dags[path.stem]
    advice = f"{path.name}: pass **dag_arguments(__doc__, 'a tag') from switchyard.airflow.defaults to @dag"
    assert "switchyard" in dag.tags, advice
    assert len(dag.tags) >= 2, advice
    assert {task.owner for task in dag.tasks} == {"switchyard"}, advice


@each_dag
def test_params_explain_themselves(path: Path, dags: dict[str, DAG]) -> None:
    for name in dags[path.stem].params:
        param = dags[path.stem].params.get_param(name)
        shown = {**param.schema, "description": param.description}
        for key in ("type", "title", "description"):
            assert shown.get(key), f"{path.name}: give the Param {name} a {key}; the form shows it"


@each_dag
def test_does_not_catch_up(path: Path, dags: dict[str, DAG]) -> None:
    assert dags[path.stem].catchup is False, f"{path.name}: the stream has no past runs to make up for"
