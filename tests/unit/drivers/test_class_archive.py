"""When set-up has a class archive made again. That one is made and used is proved by set-up and by every driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.drivers import class_archive, jars


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    real = jars.cache_dir() / "jars"
    (tmp_path / "jars").symlink_to(real)
    monkeypatch.setenv("SWITCHYARD_CACHE", str(tmp_path))
    (tmp_path / "made.jsa").write_bytes(b"classes")
    return tmp_path


def test_this_clone_has_an_archive_that_belongs_to_it() -> None:
    assert class_archive.is_current()
    assert class_archive.find_archive() is not None


def test_without_an_archive_nothing_is_found(cache: Path) -> None:
    assert not class_archive.is_current()
    assert class_archive.find_archive() is None


def test_an_archive_in_place_is_current_until_what_it_was_made_from_changes(cache: Path) -> None:
    class_archive.put_in_place(cache / "made.jsa")
    assert class_archive.is_current()
    assert class_archive.find_archive() == cache / "driver.jsa"
    stamp = cache / "driver.json"
    stamp.write_text(stamp.read_text().replace("pyspark==", "pyspark==0."))
    assert not class_archive.is_current()


@pytest.mark.parametrize("stamp", ["", "{", "[]"])
def test_a_broken_stamp_is_no_stamp(cache: Path, stamp: str) -> None:
    class_archive.put_in_place(cache / "made.jsa")
    (cache / "driver.json").write_text(stamp)
    assert not class_archive.is_current()
