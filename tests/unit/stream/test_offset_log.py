"""Positions of a micro-batch out of Spark's offset log."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.errors import SwitchyardError
from switchyard.stream.offset_log import parse_offset_log, read_batch_end

LOG = 'v1\n{"batchWatermarkMs":0}\n{"users":{"1":5,"0":7}}\n{"accounts":{"0":3}}'


def test_log_gives_the_end_of_each_topic() -> None:
    assert parse_offset_log(LOG, ["users", "accounts"]) == {"users": {0: 7, 1: 5}, "accounts": {0: 3}}


@pytest.mark.parametrize("length", [None, 0, 7, len(LOG) - 20, len(LOG) - 3])
def test_offsets_that_are_not_whole_name_the_batch(tmp_path: Path, length: int | None) -> None:
    (tmp_path / "offsets").mkdir()
    if length is not None:
        (tmp_path / "offsets" / "4").write_text(LOG[:length])
    with pytest.raises(SwitchyardError, match=r"damaged: where batch 4 ends .* roll back"):
        read_batch_end(str(tmp_path), 4, ["users", "accounts"])


def test_a_source_that_was_not_read_yet_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(LOG.replace('{"accounts":{"0":3}}', "-"))
    assert read_batch_end(str(tmp_path), 0, ["users", "accounts"]) == {"users": {0: 7, 1: 5}}
