"""The task of the spare driver: starts it, watches it until a generation has taken it, and ends.

It ends only a spare that it could claim itself, so that a generation never takes one that is being ended.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException, AirflowSkipException

from switchyard.airflow.connection import read_kafka
from switchyard.airflow.start_driver import STOPPED_EXIT_CODE, DriverLog
from switchyard.airflow.watchdog import Pulse, watching
from switchyard.deadline import Deadline
from switchyard.layout import PROJECT
from switchyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from switchyard.airflow.spark_submit import SparkSubmit
    from switchyard.drivers.detached_process import DetachedProcess
    from switchyard.drivers.hand_off import HandOff

ORDER_POLL_SECONDS = 0.5
QUIET_SECONDS = 1.0
FINGERPRINT_SECONDS = 30.0
NO_GENERATION = 0
SOON = timedelta(seconds=1)
# In cluster mode there can be no spare on this machine; a person may change the connection.
LATER = timedelta(minutes=10)
NAME, APPLICATION = "switchyard-spare", str(PROJECT / "jobs" / "spare_driver.py")


class SpareOperator(BaseOperator):
    """Run one spare driver, from its start until a generation takes it."""

    ui_color = "#e8e3d5"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._hand_off: HandOff | None = None
        self._process: DetachedProcess | None = None
        self._was_ended = False

    def execute(self, context: Context) -> str:
        from switchyard.airflow.spark_submit import read_submit
        from switchyard.drivers.hand_off import HandOff
        from switchyard.drivers.spare_claim import end_spares
        from switchyard.kafka.client_settings import write_properties
        from switchyard.kafka.security import TOKEN_URL

        settings = load_settings()
        if not settings.spare:
            raise AirflowSkipException("SWITCHYARD_SPARE is off: no spare driver is wanted.")
        kafka = read_kafka()
        token_url = kafka.get(TOKEN_URL, "")
        submit = read_submit(settings)
        if not submit.place.is_here:
            self.log.info("Drivers run in cluster mode, on other machines: no spare driver can wait here.")
            self._try_again(LATER)
        self._wait_until_quiet(settings)
        if ended := end_spares(settings.workspace):
            self.log.info("Ended what an earlier try has left: %s", ", ".join(ended))
        hand_off = HandOff.create(settings.workspace, submit.fingerprint(token_url))
        properties = settings.workspace.kafka_properties(NO_GENERATION, os.getpid())
        write_properties(properties, kafka)
        try:
            return self._run(settings, submit, hand_off, properties, token_url)
        finally:
            properties.unlink(missing_ok=True)

    def on_kill(self) -> None:
        # A driver that a generation has taken belongs to the task of that generation.
        if self._end_unless_taken():
            self.log.info("The spare driver is ended.")

    def _run(self, settings: Settings, submit: SparkSubmit, hand_off: HandOff, properties: Path, token_url: str) -> str:
        output = DriverLog(self.log)
        with hand_off.owned():
            process = start(submit, hand_off, properties)
            self._hand_off, self._process = hand_off, process
            # One batch of the rehearsal may take longer than `hung_seconds`. Later a spare that hangs is found by the
            # health DAG.
            patience = settings.ready_deadline_seconds + settings.hung_seconds
            pulse = Pulse(hand_off.pulse, patience, patience)
            with watching(pulse, self._end_hung):
                self._follow(submit, hand_off, process, output, token_url)
        order = hand_off.read_order()
        if order is not None:
            # The next run starts the next spare, which would take processors from this swap.
            self._wait_until_quiet(settings)
            return f"generation {order.generation} has taken the spare driver"
        was_ended, code = self._was_ended or hand_off.is_claimed, process.returncode
        hand_off.remove()
        if was_ended or code == STOPPED_EXIT_CODE:
            self.log.info("The spare driver was ended (code %s) and is replaced.", code)
            self._try_again(SOON)
        raise AirflowException(f"The spare driver ended by itself, with code {code}.{output.describe_end()}")

    def _follow(
        self, submit: SparkSubmit, hand_off: HandOff, process: DetachedProcess, output: DriverLog, token_url: str
    ) -> None:
        """Log the output of the spare and check its fingerprint, until it is taken or has ended."""
        fingerprint, next_check = hand_off.read_fingerprint(), Deadline(FINGERPRINT_SECONDS)
        while True:
            has_ended = process.poll() is not None
            output.show_new_lines(process)
            if has_ended or hand_off.read_order() is not None:
                return
            if next_check.restart_if_passed(FINGERPRINT_SECONDS) and submit.fingerprint(token_url) != fingerprint:
                self.log.info("Code, jars or settings have changed since it was started.")
                self._end_unless_taken()
            time.sleep(ORDER_POLL_SECONDS)

    def _end_hung(self, silence_seconds: float) -> None:
        if self._end_unless_taken():
            self.log.warning("The spare driver was silent for %.0f s and is ended.", silence_seconds)

    def _end_unless_taken(self) -> bool:
        if self._hand_off is None or self._process is None or self._hand_off.is_claimed:
            return False
        if self._hand_off.read_offer() is not None and not self._hand_off.claim():
            return False
        self._was_ended = True
        self._process.end()
        return True

    def _wait_until_quiet(self, settings: Settings) -> None:
        from switchyard.drivers.spares import may_warm_up
        from switchyard.swap.log_messages import open_history

        history, is_told = open_history(settings.layout), False
        while not may_warm_up(history.ledger(), history.status_row()):
            if not is_told:
                self.log.info("A swap is under way, or nothing is active yet: the spare driver is started after it.")
                is_told = True
            time.sleep(QUIET_SECONDS)

    def _try_again(self, after: timedelta) -> None:
        # A failure would cost one of the retries.
        raise AirflowRescheduleException(datetime.now(UTC) + after) from None  # type: ignore[no-untyped-call]


def start(submit: SparkSubmit, hand_off: HandOff, properties: Path) -> DetachedProcess:
    """Start the spare with its output in a file, where the task that takes it reads on."""
    from switchyard.drivers.detached_process import DetachedProcess, start_detached

    arguments = ["--spare", str(hand_off.folder), "--kafka-properties", str(properties)]
    command = submit.make_command(NAME, APPLICATION, arguments)
    started = start_detached(hand_off.folder, command, {**os.environ, **submit.environment})
    return DetachedProcess(hand_off.folder, started.pid)
