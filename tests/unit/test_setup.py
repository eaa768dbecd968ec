"""The set-up's decisions and sentences. That it installs is proved by every run of these tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from switchyard.errors import SwitchyardError
from tools import environment, java_package, page_build, steps

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("error: Failed to fetch: `x`\n  cause: dns error", "the package registry cannot be reached"),
        ("write failed: No space left on device (os error 28)", "the disk is full while installing"),
        ("noise\nswitchyard: the jars are odd.", "the jars are odd."),
        ("noise\nlast words\n\n", "installing failed: last words"),
        ("", "installing failed: no reason given"),
    ],
)
def test_a_failed_step_becomes_one_sentence(output: str, sentence: str, tmp_path: Path) -> None:
    explained = steps.explain_failure("installing", output, tmp_path / "log")
    assert sentence in explained
    assert "\n" not in explained


def test_a_step_says_what_it_does_and_how_long_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps.run_step("counting", [sys.executable, "-c", "print(1)"], tmp_path / "log")
    assert capsys.readouterr().out.startswith("set-up: counting … done in ")


def test_a_failing_step_raises_its_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('it broke')"]
    with pytest.raises(SwitchyardError, match="counting failed: it broke"):
        steps.run_step("counting", command, tmp_path / "log")


def test_this_environment_is_current_and_a_changed_one_is_not() -> None:
    stamp = environment.read_stamp()
    assert environment.is_current(stamp, dev=True)
    assert not environment.is_current(environment.Stamp("other", stamp.development), dev=False)
    assert not environment.is_current(environment.Stamp(stamp.runtime, "other"), dev=True)
    assert environment.is_current(environment.Stamp(stamp.runtime, ""), dev=False)


def test_too_little_space_is_said_before_anything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "NEEDED_GIGABYTES", 1e9)
    with pytest.raises(SwitchyardError, match="GB free and set-up needs"):
        environment._require_space()


def test_an_unknown_option_is_refused() -> None:
    answer = subprocess.run(
        [sys.executable, "tools/setup.py", "--nonsense"], cwd=PROJECT, capture_output=True, text=True
    )
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr


def test_java_is_added_without_changing_what_is_installed() -> None:
    command = java_package.build_command(["apt-get"], 17)
    assert {"--no-upgrade", "--no-remove"} <= set(command)


def test_the_requirements_name_no_index_and_no_folder_of_a_machine() -> None:
    for path in PROJECT.glob("requirements*"):
        text = path.read_text()
        assert "://" not in text
        assert "--index" not in text


def test_the_page_is_built_again_only_when_its_source_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, built = tmp_path / "page", tmp_path / "static"
    for folder in (source / "node_modules", built):
        folder.mkdir(parents=True)
    monkeypatch.setattr(page_build, "SOURCE", source)
    monkeypatch.setattr(page_build, "BUILT", built)
    monkeypatch.setattr(page_build, "STAMP", built / "source.sha256")
    (source / "page.ts").write_text("1")
    (built / "index.html").touch()
    assert not page_build.is_current()
    page_build.STAMP.write_text(page_build.digest_source())
    assert page_build.is_current()
    (source / "node_modules" / "library.js").touch()
    assert page_build.is_current()
    (source / "page.ts").write_text("2")
    assert not page_build.is_current()


def test_the_lock_file_of_the_page_names_no_registry() -> None:
    assert "://" not in (page_build.SOURCE / "package-lock.json").read_text()
