"""Asks the broker for the ends of the topics, and tells when it does not answer or has other topics than before."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from switchyard.errors import InputError, SwitchyardError
from switchyard.kafka.topics import TopicReader
from switchyard.stream.attempt import Attempt
from switchyard.stream.continuity import check_topics
from switchyard.stream.runner import BatchRunner

log = logging.getLogger("switchyard.driver")


@dataclass
class BrokerWatch:
    attempt: Attempt
    runner: BatchRunner
    reader: TopicReader
    _silent_since: float | None = None
    _is_doubted: bool = False

    def ask_ends(self) -> None:
        """Without an answer the lag is unknown; the stream goes on, and Spark waits for the broker."""
        spec, asked_at = self.attempt.spec, time.monotonic()
        try:
            check_topics(spec, self.reader)
            self.runner.progress.broker_ends = {
                topic: self.reader.bounds(topic)[1] for topic in (spec.usersTopic, spec.accountsTopic)
            }
        except InputError as error:
            self._doubt(error)
        except SwitchyardError as error:
            log.warning("%s", error)
            self.runner.progress.broker_ends = {}
            self._note_silence(asked_at)
        else:
            self._is_doubted = False
            self._note_answer()

    def _doubt(self, error: InputError) -> None:
        """Raise the error the second time in a row: a broker that has just started may not know its topics yet."""
        if self._is_doubted:
            raise error
        self._is_doubted = True

    def _note_silence(self, asked_at: float) -> None:
        if self._silent_since is None:
            self._silent_since = asked_at
            self.attempt.tell("the broker does not answer; the driver waits for it", "WARNING")

    def _note_answer(self) -> None:
        if self._silent_since is not None:
            silence = time.monotonic() - self._silent_since
            self._silent_since = None
            self.attempt.tell(f"the broker answers again, after {silence:.0f} s; the driver goes on")
