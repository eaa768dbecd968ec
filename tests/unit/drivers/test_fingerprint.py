"""What a spare was started with, as a fingerprint that names what has changed."""

from __future__ import annotations

from pathlib import Path

from switchyard.drivers.fingerprint import fingerprint_driver
from switchyard.drivers.spares import (
    find_differences,
)
from switchyard.settings import Settings
from tests.specs import make_settings


def test_the_fingerprint_names_what_has_changed(tmp_path: Path) -> None:
    jar, code = tmp_path / "a.jar", tmp_path / "project" / "switchyard" / "a.py"
    code.parent.mkdir(parents=True)
    for path in (jar, code):
        path.write_text("text")
    conf = {"spark.driver.extraClassPath": f"{jar}:/not/there.jar", "spark.x": "1"}
    settings = make_settings(tmp_path)

    def fingerprint(settings: Settings = settings, master: str = "local[2]", token_url: str = "") -> dict[str, str]:
        return fingerprint_driver(settings, master, conf, token_url, project=tmp_path / "project")

    first = fingerprint()
    assert find_differences(first, fingerprint()) == []
    assert find_differences(first, fingerprint(settings.model_copy(update={"trigger_seconds": 2.0}))) == ["settings"]
    assert find_differences(first, fingerprint(master="local[4]")) == ["Spark settings"]
    assert find_differences(first, fingerprint(token_url="https://id.example.org")) == ["token address"]
    jar.write_text("another text")
    assert find_differences(first, fingerprint()) == ["jars"]
    (code.parent / "b.py").write_text("")
    assert find_differences(first, fingerprint()) == ["code", "jars"]
