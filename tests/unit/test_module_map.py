"""The map of modules: one row for each file, by layer, in the words of its docstring."""

from __future__ import annotations

from pathlib import Path

from tools.module_map import make_page, summarise

PYPROJECT = """
[[tool.importlinter.contracts]]
type = "forbidden"
[[tool.importlinter.contracts]]
type = "layers"
layers = ["top", "low | base", "errors"]
"""


def test_folders_come_in_the_order_of_the_layers_and_the_foundation_last(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    for name in ("low", "top"):
        (tmp_path / "switchyard" / name).mkdir(parents=True)
        (tmp_path / "switchyard" / name / "__init__.py").write_text(f'"""What {name} holds."""')
        (tmp_path / "switchyard" / name / "one.py").write_text('"""Does one | thing. And more."""')
    (tmp_path / "switchyard" / "errors.py").write_text("")
    lines = make_page(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## top/", "## low/", "## The root"]
    assert lines.count(r"| `one.py` | Does one \| thing. |") == 2
    assert "What top holds." in lines
    assert lines[-1] == "| `errors.py` | (no docstring) |"


def test_the_summary_is_the_first_sentence() -> None:
    assert summarise("The text format, version 0.0.4: lines.\n\nPure.") == "The text format, version 0.0.4: lines."
    assert summarise("Runs a job:\nonce. `Again` is safe.") == "Runs a job: once."
    assert summarise("no full stop") == "no full stop"
