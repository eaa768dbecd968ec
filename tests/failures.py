"""How tests look at what people are told of an error: one sentence, without a value."""

from __future__ import annotations

import re
from collections.abc import Callable

from switchyard.stream.failures import explain_failure

SECRET = "jane.doe@example.org"
TRACE = re.compile(r"\n|\bat (org|java|scala)\.|An error occurred while calling|Traceback|File \"|SQLSTATE|o\d+\.")


def check(said: str, *words: str) -> None:
    for word in words:
        assert word in said, said
    assert not TRACE.search(said), said
    assert SECRET not in said
    assert "jane" not in said
    assert said == said.strip()
    assert len(said) < 400


def explain(cause: Callable[[], object]) -> str:
    try:
        cause()
    except Exception as error:
        return explain_failure(error)
    raise AssertionError("nothing has failed")
