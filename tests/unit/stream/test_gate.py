"""The verdict of the data gate, as people read it."""

from __future__ import annotations

from switchyard.stream.gate import GateVerdict


def test_the_verdict_in_words() -> None:
    assert GateVerdict(0, 0, 0, 0).describe() == "no records yet to compare"
    assert GateVerdict(0, 0, 0, 9, is_off=True).describe() == "the data gate is turned off"
    assert GateVerdict(3, 0, 0, 9).describe() == "3 joined rows of 9 records equal the batch join"
    said = GateVerdict(3, 1, 2, 9).describe()
    assert said == "of 3 joined rows of 9 records, 2 are not in the batch join and 1 of its rows are missing"
    some = GateVerdict(3, 0, 0, 9, events=2)
    assert some.describe() == "3 joined rows of 2 events, a sample of 9 records, equal the batch join"
    wrong = GateVerdict(3, 0, 0, 9, events=2, wrong_records=4)
    assert not wrong.is_clean
    assert wrong.describe().endswith("are missing; 4 records are not stored as the topics have them")
