"""A driver that a task submits, with a shell in the place of spark-submit."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException

from switchyard.airflow.start_driver import SubmittedDriver
from switchyard.settings import Settings
from tests.waiting import eventually


def submit(script: str, pid_file: Path) -> SubmittedDriver:
    log: logging.Logger = logging.getLogger(__name__)
    return SubmittedDriver(["/bin/sh", "-c", script], {"PLACE": "here"}, pid_file, log)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ending", "code"), [("exit 0", 0), ("exit 75", 75), ("kill -9 $$", -9)])
def test_its_output_is_the_log_and_its_last_lines_are_in_the_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str, code: int
) -> None:
    caplog.set_level(logging.INFO)
    driver = submit(f"echo words from $PLACE; {ending}", tmp_path / "driver.pid")
    failure = driver.run_watched(Settings(root=str(tmp_path)))
    assert driver.exit_code == code
    assert "words from here" in caplog.messages
    assert (failure is None) == (code == 0)
    assert failure is None or "words from here" in str(failure)


def test_the_process_that_wrote_its_pid_is_asked_to_end_and_not_the_one_around_it(tmp_path: Path) -> None:
    pid_file, ended = tmp_path / "driver.pid", tmp_path / "ended"
    inner = f'trap "echo asked > {ended}; exit 143" TERM; echo $$ > {pid_file}; while true; do sleep 0.05; done'
    driver = submit(f"trap 'echo wrong > {ended}' TERM; sh -c '{inner}'; exit $?", pid_file)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            driver.run()
        except AirflowException as failure:
            raised.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: pid_file.exists() and pid_file.read_text().strip())
    assert os.getsid(int(pid_file.read_text())) != os.getsid(0), "it is in a separate session"
    driver.on_kill()
    thread.join(10)
    assert ended.read_text() == "asked\n"
    assert (driver.was_killed, driver.exit_code, len(raised)) == (True, 143, 1)
