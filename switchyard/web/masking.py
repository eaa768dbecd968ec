"""E-mail addresses, made unreadable in whatever text they stand."""

from __future__ import annotations

import re
from typing import Any

from switchyard.tables.long_text import MOST_CHARACTERS, is_cut

_RUN = re.compile(r"[^\s@\"'<>,;:(){}\[\]\\]*")
# In JSON an @ may be written like this.
_ESCAPED_AT = re.compile(r"\\u0040", re.IGNORECASE)
_PART_OF_AT = re.compile(r"\\(?:u(?:0(?:04?)?)?)?$")
HIDDEN = "(hidden)"


def mask_text(text: str) -> str:
    """`ada.turing@example.org` becomes `a…@…`: enough to see that there is one. Takes time in line with the length."""
    if is_cut(text):
        # An address may stand where it was cut, without its @.
        start, end = _PART_OF_AT.sub("", text[:MOST_CHARACTERS]), text[MOST_CHARACTERS:]
        return mask_text(f"{start}@").removesuffix("…@…") + end
    parts = _ESCAPED_AT.sub("@", text).split("@")
    last = len(parts) - 1
    masked = []
    for place, part in enumerate(parts):
        rest = "…" + _RUN.sub("", part, count=1) if place > 0 else part
        masked.append(_shorten_end(rest) if place < last else rest)
    return "@".join(masked)


def _shorten_end(text: str) -> str:
    backwards = text[::-1]
    run = _RUN.match(backwards)
    length = run.end() if run else 0
    kept = text[: len(text) - length]
    return kept + text[len(kept) : len(kept) + 1].replace("…", "") + "…"


def mask_row(row: dict[str, Any]) -> dict[str, Any]:
    masked = {name: mask_text(value) if isinstance(value, str) else value for name, value in row.items()}
    if "UTF-8" in str(row.get("reason")):
        # Kept as base64, in which nobody sees an address, but anybody can read it.
        masked["value"] = HIDDEN
    return masked
