"""Explain in one sentence why a stream has stopped, without the values of rows that an error may quote."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable

from switchyard.errors import SwitchyardError
from switchyard.stream.offset_log import ADVICE
from switchyard.wording import clean_foreign_text, describe_error, mask_emails, shorten

ROOM_SECONDS = 2.0
log = logging.getLogger("switchyard.driver")
DISK_FULL = "(?i)No space left on device|os error 28|errno 28|Disk quota exceeded"
_KNOWN = {
    DISK_FULL: "the disk under tables and checkpoints is full; make room, and it goes on where it was",
    "(?i)KAFKA_DATA_LOSS|data may have been lost|OffsetOutOfRange|offset was changed from": (
        "Kafka no longer holds records that it still had to read: they were deleted, or a topic was created again; "
        + ADVICE
    ),
    "UnknownTopicOrPartition|UnknownTopicId|UNKNOWN_TOPIC": (
        "a topic that it reads does not exist any more; create it and swap to it again, or roll back"
    ),
    "AuthorizationException|AuthenticationException|SaslAuthentication|SslAuthentication": (
        "the broker refuses the Kafka user; correct the connection kafka_default or the user's rights"
    ),
    r"OutOfMemoryError|OUT_OF_MEMORY|Java heap space|\bMemoryError|ArrowMemoryError|malloc of size": (
        "the driver had not enough memory; raise SWITCHYARD_DRIVER_MEMORY"
    ),
    r"bigger than spark\.driver\.maxResultSize": (
        "the driver was to collect more rows than it may; swap again with a later start, and report it: this is a "
        "fault of Switchyard"
    ),
    "Py4JNetworkError|Answer from Java side is empty|Error while (?:sending|obtaining)": (
        "the JVM of the driver has ended; if its log shows no other cause, raise SWITCHYARD_DRIVER_MEMORY"
    ),
    "ExecutorLostFailure|Lost executor|executor .{0,40}(?:exited|removed)": (
        "Spark has lost an executor; look at the memory and the log of the Spark workers"
    ),
    r"Could not find table version|Invalid table version|No files in log segment|TableNotFoundError|"
    r"LogSegment end version|DELTA_VERSION_NOT_FOUND|FILE_NOT_EXIST|PATH_NOT_FOUND|\.parquet\b.* not found|"
    r"(?:open local file|Path does not exist) .*\.parquet": (
        "a file or a version of a table that it needs is not there any more; if another tool has removed it, restore "
        "it, or swap again with start earliest"
    ),
    "CommitFailedError|concurrent transactions? (?:added|deleted)|DELTA_CONCURRENT": (
        "another writer has changed a table at the same moment; it is tried again, and if that does not help, look "
        "which other tool writes to the tables"
    ),
    "SchemaMismatchError|DELTA_FAILED_TO_MERGE_FIELDS|DELTA_METADATA_MISMATCH": (
        "a table has other columns than Switchyard writes; undo what another tool has changed in it"
    ),
    "Incomplete log file|MALFORMED_LOG_FILE|CANNOT_LOAD_STATE_STORE|CHECKSUM_VERIFICATION_FAILED|"
    "STREAMING_CHECKPOINT_MISSING|MISSING_STATE_DIRECTORY|BATCH_METADATA_NOT_FOUND|checkpoint is damaged": (
        f"its checkpoint is damaged or not complete; {ADVICE}"
    ),
    r"kafka\.common\.errors\.(Timeout|Disconnect|Network)|Cannot fetch record for offset": (
        "the broker did not answer for too long; look whether it runs and can be reached from here"
    ),
}
"""Pattern → what it means and what to do. The first one that is found in the text of an error counts."""
_OWN_ERROR = re.compile(r"switchyard\.errors\.\w+: (.+)")
# A trace names several: the first is what Spark says, the last is what caused it.
_CAUSE = re.compile(
    r"^(?:Caused by: |: )?(?:[a-z]\w*\.)*([A-Z]\w*(?:Exception|Error|Failure))(?:: (.*))?$", re.MULTILINE
)
_PACKAGE = re.compile(r"\b(?:[a-z]\w*\.){2,}(?=[A-Z])")
_CODE = re.compile(r"\[[A-Z_.]{3,}\] |SQLSTATE: \w+|\{.*")
_NEXT_SENTENCE = re.compile(r"(?<=\w)\. (?=[A-Z])")
DETAILS = "the log of the task `stream` has the details"


def explain_failure(error: BaseException, details: str = DETAILS) -> str:
    """Return our errors as they are, known causes in plain words, others in one line; `details` says where more is."""
    if isinstance(error, SwitchyardError):
        return describe_error(error)
    while (cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = cause
    return explain_text(f"{type(error).__name__}: {error}", details)


def explain_text(text: str, details: str = DETAILS) -> str:
    """Explain the text of a failed query, which has the stack traces of Java and Python in it."""
    if own := _OWN_ERROR.search(text):
        return mask_emails(own[1].strip())
    known = next((sentence for pattern, sentence in _KNOWN.items() if re.search(pattern, text)), None)
    return known or "; ".join(filter(None, [_name_cause(text), details]))


def _name_cause(text: str) -> str:
    """Return the innermost cause with a message, without Java's package names and without what it quotes."""
    found = [(name, _shorten(message)) for name, message in _CAUSE.findall(text)]
    causes = [f"{name}: {message}" for name, message in found if message] or [name for name, _ in found]
    return causes[-1] if causes else _shorten(text) or "an unknown error"


def _shorten(message: str) -> str:
    """Keep the first sentence: the advice that Spark adds is for people who write queries."""
    sentence = _NEXT_SENTENCE.split(_CODE.sub("", message).strip().partition("\n")[0])[0]
    line = shorten(_PACKAGE.sub("", clean_foreign_text(sentence)))
    return " ".join(line.split()).rstrip(".;, ")


def is_disk_full(error: BaseException) -> bool:
    return re.search(DISK_FULL, str(error)) is not None


def write_when_disk_has_room(reason: str, write: Callable[[], None], stop: threading.Event) -> None:
    """Write the reason for a failure. When the disk is full, try again until there is room or `stop` is set."""
    while True:
        try:
            return write()
        except Exception as error:
            if not is_disk_full(error):
                raise
            log.error("%s; this cannot be written into logs yet", reason)
        if stop.wait(ROOM_SECONDS):
            return None
