"""Word what people read in logs, the history and reasons: short, and without values of records.

Our sentences hold no values. Errors of other libraries may quote what they could not read, so text in quotes is cut
out of them. E-mail addresses are masked everywhere. All masking is here.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Sequence
from datetime import timedelta

from switchyard.errors import SwitchyardError

_EMAIL = re.compile(r"[^\s@\"'<>()\[\]{},;:=|]+@[^\s@\"'<>()\[\]{},;:=|]+")
_PART_OF_EMAIL = re.compile(r"[^\s@\"'<>,;:(){}\[\]\\]*")
# In JSON an @ may be written like this.
_ESCAPED_AT = re.compile(r"\\u0040", re.IGNORECASE)
# Without the quote inside a word, as in don't.
_QUOTE = re.compile(r"(?<!\w)['\"]|['\"](?!\w)")
# From the first quote of a line to the last, as a value may hold quotes itself.
_QUOTED = re.compile(r"(?<!\w)['\"].*['\"](?!\w)|(?<!\w)['\"].*")
# A line of a stack, or the name of a cause without what it says. PySpark has the stack in the text or beside it.
_JAVA_LINE = re.compile(r"^(?:\tat [\w.$/<>]+\([\w.:$ ]*\)|Caused by: [\w.$]+)", re.MULTILINE)
MOST_CHARACTERS = 500


def describe_time(time: timedelta) -> str:
    seconds = int(time.total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def as_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Align columns by their longest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def mask_emails(text: str) -> str:
    return _EMAIL.sub("(e-mail)", text)


def shorten_emails(text: str) -> str:
    """Turn `ada.turing@example.org` into `a…@…`: enough to see that there is an address."""
    # Split at each @ instead of matched: values are long, and this takes time in proportion to their length.
    first, *others = _ESCAPED_AT.sub("@", text).split("@")
    parts = [first, *("…" + _PART_OF_EMAIL.sub("", part, count=1) for part in others)]
    return "@".join([*map(_shorten_end, parts[:-1]), parts[-1]])


def _shorten_end(text: str) -> str:
    found = _PART_OF_EMAIL.match(text[::-1])
    kept = text[: len(text) - (found.end() if found else 0)]
    return kept + text[len(kept) : len(kept) + 1].replace("…", "") + "…"


def hide_values(text: str, values: Iterable[object], is_whole: bool = False) -> str:
    """Replace values by `***`; with `is_whole` only if they are no part of a longer word."""
    # A setting may be as short as `1`.
    pattern = r"(?<![\w.]){}(?![\w.])" if is_whole else "{}"
    for value in sorted({str(value) for value in values} - {""}, key=len, reverse=True):
        text = re.sub(pattern.format(re.escape(value)), "***", text)
    return text


def clean_foreign_text(text: str) -> str:
    """Shorten the text of another library's error; cut out what is in quotes, and e-mail addresses."""
    lines = []
    for line in text.strip().splitlines():
        lines.append(_QUOTED.sub("'...'", line))
        if len(_QUOTE.findall(line)) % 2:
            # The quotation goes on in the next line, and its end cannot be found.
            break
    return mask_emails("\n".join(lines))[:MOST_CHARACTERS]


def describe_error(error: BaseException) -> str:
    if isinstance(error, SwitchyardError):
        return mask_emails(str(error))
    return clean_foreign_text(str(error)) or type(error).__name__


def describe_stack(error: BaseException) -> str:
    """Say where an error was raised, by the lines of the Python and Java stacks, and why, without the error's text."""
    java = _JAVA_LINE.findall(f"{error}\n{getattr(error, '_stackTrace', None) or ''}")
    place = "".join([*traceback.format_tb(error.__traceback__), *(f"{line}\n" for line in java)])
    return f"{place}{type(error).__name__}: {describe_error(error)}"


class CleanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return mask_emails(super().format(record))

    def formatException(self, ei: object) -> str:
        error = ei[1] if isinstance(ei, tuple) else None
        return describe_stack(error) if error else ""


def start_logging() -> None:
    """Start the standard logging for a job, but keep values out."""
    handler = logging.StreamHandler()
    handler.setFormatter(CleanFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
