"""Ask the broker for the ends of the topics, and warn when it does not answer or has other topics than before."""

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
        """Ask for the ends. Without an answer the lag is unknown; Spark waits for the broker, then goes on."""
        spec, asked_at = self.attempt.spec, time.monotonic()
        try:
            check_topics(spec, self.reader)
            self.runner.progress.broker_ends = {
                topic: self.reader.bounds(topic)[1] for topic in (spec.usersTopic, spec.accountsTopic)
            }
        except InputError:
            # A broker that has just started may not know its topics yet, so the first such answer does not count.
            if self._is_doubted:
                raise
            self._is_doubted = True
        except SwitchyardError as error:
            log.warning("%s", error)
            self.runner.progress.broker_ends = {}
            if self._silent_since is None:
                self._silent_since = asked_at
                self.attempt.log("the broker does not answer; the driver waits for it", "WARNING")
        else:
            self._is_doubted = False
            if self._silent_since is not None:
                silence, self._silent_since = time.monotonic() - self._silent_since, None
                self.attempt.log(f"the broker answers again, after {silence:.0f} s; the driver goes on")
