"""Who looks, and what they may do. Where a login comes from is decided elsewhere and handed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException, Request


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
    """A page of another site must not be able to send a command with the cookie of this one."""
    if not comes_from_here(request.headers.get("sec-fetch-site"), request.headers.get("origin"), request.headers):
        raise HTTPException(403, "this request comes from another site: send it from the page, or with a token")


def comes_from_here(fetch_site: str | None, origin: str | None, headers: Any) -> bool:
    if fetch_site is not None:
        return fetch_site in ("same-origin", "none")
    if origin is not None:
        return urlsplit(origin).netloc == str(headers.get("host"))
    # No browser: then a token says on purpose who asks, as no cookie does.
    return str(headers.get("authorization", "")).lower().startswith("bearer ")
