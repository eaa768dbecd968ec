"""Why a stream has stopped, in one sentence for `logs`: never a value of a row, which an error's own text may quote."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable

from switchyard.errors import SwitchyardError
from switchyard.privacy import describe_error, mask_emails
from switchyard.stream.offset_log import ADVICE

ROOM_SECONDS = 2.0
log = logging.getLogger("switchyard.driver")
DISK_FULL = re.compile(r"No space left on device|os error 28|errno 28|Disk quota exceeded", re.IGNORECASE)
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (DISK_FULL, "the disk under tables and checkpoints is full; make room, and it goes on where it was"),
    (
        re.compile(r"KAFKA_DATA_LOSS|data may have been lost|OffsetOutOfRange|offset was changed from", re.IGNORECASE),
        "Kafka no longer holds records that it still had to read: they were deleted, or a topic was created anew; "
        + ADVICE,
    ),
    (
        re.compile(r"UnknownTopicOrPartition|UnknownTopicId|UNKNOWN_TOPIC"),
        "a topic that it reads does not exist any more; create it and swap to it again, or roll back",
    ),
    (
        re.compile(r"AuthorizationException|AuthenticationException|SaslAuthentication|SslAuthentication"),
        "the broker refuses the Kafka user; mend the connection kafka_default or the user's rights",
    ),
    (
        re.compile(r"OutOfMemoryError|OUT_OF_MEMORY|Java heap space"),
        "the driver had not enough memory; raise SWITCHYARD_DRIVER_MEMORY",
    ),
    (
        re.compile(
            r"Incomplete log file|MALFORMED_LOG_FILE|CANNOT_LOAD_STATE_STORE|CHECKSUM_VERIFICATION_FAILED|"
            r"STREAMING_CHECKPOINT_MISSING|MISSING_STATE_DIRECTORY|BATCH_METADATA_NOT_FOUND|checkpoint is damaged"
        ),
        f"its checkpoint is damaged or not complete; {ADVICE}",
    ),
    (
        re.compile(r"kafka\.common\.errors\.(Timeout|Disconnect|Network)|Cannot fetch record for offset"),
        "the broker did not answer for too long",
    ),
)
_OWN_ERROR = re.compile(r"switchyard\.errors\.\w+: (.+)")
_ERROR_NAME = re.compile(r"\b\w+(?:Exception|Error)\b")


def explain_failure(error: BaseException) -> str:
    """Our own errors are meant for people; others are known ones, or lose what they quote."""
    if isinstance(error, SwitchyardError):
        return describe_error(error)
    return _find_known(f"{type(error).__name__}: {error}") or describe_error(error)


def explain_text(text: str) -> str:
    """Of Spark's account of a failure, with the traces of Java and Python in it."""
    if own := _OWN_ERROR.search(text):
        return mask_emails(own[1].strip())
    if known := _find_known(text):
        return known
    names = list(dict.fromkeys(_ERROR_NAME.findall(text))) or ["an unknown error"]
    return f"{', '.join(names[:3])}; the log of the task `stream` has the details"


def _find_known(text: str) -> str | None:
    return next((sentence for pattern, sentence in _KNOWN if pattern.search(text)), None)


def is_disk_full(error: BaseException) -> bool:
    return DISK_FULL.search(str(error)) is not None


def insist(reason: str, write: Callable[[], None], stop: threading.Event) -> None:
    """Writes the reason for a failure. A full disk keeps even that from being written: it is waited for."""
    while True:
        try:
            return write()
        except Exception as error:
            if not is_disk_full(error):
                raise
            log.error("%s; this cannot be written into logs yet", reason)
        if stop.wait(ROOM_SECONDS):
            return None
