"""What a viewer of the page may do and is shown. The login itself is handed in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from fastapi.datastructures import Headers

from switchyard.tables.long_text import MOST_CHARACTERS, is_cut
from switchyard.wording import shorten_emails

HIDDEN = "(hidden)"
_PART_OF_AT = re.compile(r"\\(?:u(?:0(?:04?)?)?)?$")


@dataclass(frozen=True)
class Viewer:
    name: str
    may_command: bool = False
    sees_addresses: bool = False


@dataclass(frozen=True)
class Access:
    """Dependencies of FastAPI that give the viewer, or raise 401 for nobody and 403 for the wrong role."""

    read: Callable[..., Any]
    command: Callable[..., Any]


def refuse_cross_site(request: Request) -> None:
    """Refuse a command that a page of another site sends with the cookie of this one."""
    if not comes_from_here(request.headers):
        raise HTTPException(403, "this request comes from another site: send it from the page, or with a token")


def comes_from_here(headers: Headers) -> bool:
    if "sec-fetch-site" in headers:
        return headers["sec-fetch-site"] in ("same-origin", "none")
    if "origin" in headers:
        return urlsplit(headers["origin"]).netloc == headers.get("host")
    # Not a browser. Only a token is sent on purpose; a cookie goes with every request to its site.
    return headers.get("authorization", "").lower().startswith("bearer ")


def mask_row(row: dict[str, Any]) -> dict[str, Any]:
    masked = {name: _mask(value) if isinstance(value, str) else value for name, value in row.items()}
    if "UTF-8" in str(row.get("reason")):
        # Stored as base64, in which an address is not seen but can be decoded.
        masked["value"] = HIDDEN
    return masked


def _mask(text: str) -> str:
    if not is_cut(text):
        return shorten_emails(text)
    # The cut may go through an address, so that its @ is missing.
    start, end = _PART_OF_AT.sub("", text[:MOST_CHARACTERS]), text[MOST_CHARACTERS:]
    return shorten_emails(f"{start}@").removesuffix("…@…") + end
