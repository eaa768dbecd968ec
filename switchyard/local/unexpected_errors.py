"""Unexpected errors: show one sentence and put the stack, which may quote values, into a log."""

from __future__ import annotations

from datetime import UTC, datetime

from switchyard.errors import SwitchyardError
from switchyard.layout import Workspace
from switchyard.wording import describe_stack


def explain_unexpected(workspace: Workspace, error: Exception) -> SwitchyardError:
    from switchyard.stream.failures import explain_failure

    log = workspace.process_logs / "cli.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as lines:
        lines.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {describe_stack(error)}\n")
    return SwitchyardError(f"{explain_failure(error, details='')} (all of it in {log})")
