"""The lock, and what happens when the jars are not what it says. Fetching itself is proved by set-up."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from switchyard.drivers import ivy, jars
from switchyard.drivers.jars import LockedJar
from switchyard.errors import SwitchyardError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for group in jars.GROUPS:
        (tmp_path / group).mkdir()
    (tmp_path / "spark" / "a-1.jar").write_bytes(b"a")
    return tmp_path


def lock_of(content: bytes, name: str = "a-1.jar") -> list[LockedJar]:
    return [LockedJar("spark", name, hashlib.sha256(content).hexdigest())]


def test_the_lock_names_every_coordinate_with_a_checksum() -> None:
    locked = jars.read_lock()
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in locked)
    names = {(jar.group, jar.name) for jar in locked}
    for group, parts in ivy.GROUPS.items():
        for coordinate in (*parts[0], *parts[1]):
            _, artifact, version = coordinate.split(":")
            assert (group, f"{artifact}-{version}.jar") in names


def test_the_right_jars_pass(folder: Path) -> None:
    jars.verify(folder, lock_of(b"a"))


def test_a_changed_jar_is_refused(folder: Path) -> None:
    with pytest.raises(SwitchyardError, match=r"^spark/a-1.jar does not have the checksum in jars.lock"):
        jars.verify(folder, lock_of(b"b"))


def test_a_missing_jar_is_refused(folder: Path) -> None:
    with pytest.raises(SwitchyardError, match=r"z-1.jar is in jars.lock but was not fetched"):
        jars.verify(folder, lock_of(b"a") + lock_of(b"z", "z-1.jar"))


def test_a_jar_that_nobody_locked_is_refused(folder: Path) -> None:
    with pytest.raises(SwitchyardError, match=r"was fetched but is not in jars.lock"):
        jars.verify(folder, [])


def test_missing_jars_say_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHYARD_CACHE", str(tmp_path))
    for listing in (jars.spark_jars, jars.delta_jars, jars.broker_jars, jars.object_store_jars):
        with pytest.raises(SwitchyardError, match="run make setup"):
            listing()


def test_an_empty_or_broken_cache_is_not_complete(tmp_path: Path) -> None:
    assert not jars.is_complete(tmp_path)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "verified.json").write_text("{")
    assert not jars.is_complete(tmp_path)


def test_the_fetched_jars_of_this_clone_are_complete_until_one_changes_its_size(tmp_path: Path) -> None:
    source = jars.cache_dir() / "jars"
    for path in [*source.glob("*/*.jar"), source / "verified.json"]:
        copy = tmp_path / "jars" / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    assert jars.is_complete(tmp_path)
    os.truncate(next((tmp_path / "jars" / "spark").glob("*.jar")), 3)
    assert not jars.is_complete(tmp_path)


def test_the_jars_of_an_object_store_are_fetched_only_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHYARD_ROOT", "/data")
    assert jars.wanted_groups(tmp_path) == ["spark", "delta", "broker"]
    assert set(jars.wanted_groups(tmp_path, jars.OPTIONAL)) == set(jars.GROUPS)
    monkeypatch.setenv("SWITCHYARD_ROOT", "s3://bucket/path")
    assert set(jars.wanted_groups(tmp_path)) == set(jars.GROUPS)
    monkeypatch.delenv("SWITCHYARD_ROOT")
    (tmp_path / "jars" / "s3").mkdir(parents=True)
    assert set(jars.wanted_groups(tmp_path)) == set(jars.GROUPS)


def test_jars_without_those_of_an_object_store_are_complete_until_these_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWITCHYARD_ROOT", raising=False)
    locked = [jar for jar in jars.read_lock() if jar.group not in jars.OPTIONAL]
    for jar in locked:
        (tmp_path / "jars" / jar.group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "jars" / jar.group / jar.name).write_bytes(b"")
    jars._write_verified(tmp_path / "jars")
    assert jars.is_complete(tmp_path)
    assert not jars.is_complete(tmp_path, jars.OPTIONAL)


def test_no_repository_is_named_unless_a_mirror_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SWITCHYARD_MAVEN_MIRROR", raising=False)
    assert b"root=" not in ElementTree.tostring(ivy.build_settings(tmp_path))
    monkeypatch.setenv("SWITCHYARD_MAVEN_MIRROR", "http://mirror.invalid")
    assert b'root="http://mirror.invalid"' in ElementTree.tostring(ivy.build_settings(tmp_path))


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("java.net.ConnectException: Connection refused", "the Maven repository cannot be reached"),
        ("java.io.IOException: No space left on device", "the disk is full"),
        (":: org.x#y;1: not found ::", "the jars could not be fetched: org.x#y;1: not found"),
    ],
)
def test_a_failure_becomes_one_sentence(output: str, sentence: str) -> None:
    explained = ivy.explain_failure(output)
    assert explained.startswith(sentence)
    assert "\n" not in explained
