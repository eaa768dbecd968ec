"""Finding Java, among folders that look like real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.drivers.java import find_candidates, find_java, read_version
from switchyard.errors import SwitchyardError


def make_java(folder: Path, release: str | None, answer: str = "") -> Path:
    """A Java home whose program prints `answer` as `java -version` does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    program.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return folder


@pytest.mark.parametrize(("release", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25.0.1", 25)])
def test_the_version_is_read_from_the_release_file(tmp_path: Path, release: str, version: int) -> None:
    assert read_version(make_java(tmp_path / "java", release)) == version


def test_without_a_release_file_java_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", None, 'openjdk version "21.0.2" 2024-01-16')
    assert read_version(home) == 21


def test_a_folder_without_java_has_no_version(tmp_path: Path) -> None:
    assert read_version(tmp_path) is None


def test_a_wrong_java_does_not_hide_a_right_one(tmp_path: Path) -> None:
    new, right = make_java(tmp_path / "new", "25"), make_java(tmp_path / "right", "21.0.1")
    assert find_java([new, tmp_path / "nothing", right]).path == right


def test_only_wrong_ones_are_named_in_one_sentence(tmp_path: Path) -> None:
    new = make_java(tmp_path / "new", "25")
    with pytest.raises(SwitchyardError, match=r"Java 17 or 21 is needed and Java 25 in .*new was found: install"):
        find_java([new])


def test_none_at_all_says_how_to_get_it() -> None:
    with pytest.raises(SwitchyardError, match="openjdk-17-jre-headless"):
        find_java([])


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert next(find_candidates()) == tmp_path
