"""The task that takes commands: people hear why it cannot, also where nobody reads its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchyard.cli.main import main
from switchyard.errors import InputError
from switchyard.layout import Layout
from switchyard.tables.stable_names import newest_rows

CANARY = "canary-7f3a9c"
BROKEN = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f"PlainLoginModule required password={CANARY}",
}


@pytest.mark.parametrize("name", ["DEFAULT", "CONTROL"])
def test_a_round_that_cannot_begin_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    from switchyard.airflow.control_operators import ControlOperator

    monkeypatch.setenv("SWITCHYARD_ROOT", str(tmp_path))
    for each in ("DEFAULT", "CONTROL"):
        extra = BROKEN if each == name else {"bootstrap.servers": "127.0.0.1:1"}
        monkeypatch.setenv(f"AIRFLOW_CONN_KAFKA_{each}", json.dumps({"conn_type": "kafka", "extra": extra}))
    for _ in range(2):
        with pytest.raises(InputError) as refused:
            ControlOperator(task_id="take_commands").execute({})
    sentence = str(refused.value)
    assert sentence.startswith("the Kafka setting sasl.jaas.config cannot be read: it must be of the form")
    assert sentence.endswith(f"(connection kafka_{name.lower()})")
    told = newest_rows(Layout(str(tmp_path)), "orchestrator_logs", 10)
    assert [(row["level"], row["msg"]) for row in told] == [
        ("ERROR", f"messages on the control topic wait: {sentence}")
    ]
    assert main(["logs"]) == 0
    shown = capsys.readouterr().out
    assert sentence in shown
    assert CANARY not in shown
