"""The plugin is loaded by every process of Airflow, also by those that fork."""

from __future__ import annotations

from switchyard.layout import PROJECT
from tests.dags.test_import import probe


def test_the_plugin_registers_the_page_without_making_it() -> None:
    _, heavy = probe(PROJECT / "plugins" / "switchyard_plugin.py")
    assert heavy == []
