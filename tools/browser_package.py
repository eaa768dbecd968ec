"""Find Chromium for the browser tests, or install Debian's where that can be done without asking anybody."""

from __future__ import annotations

import shutil
from pathlib import Path

from switchyard.errors import SwitchyardError
from tools.java_package import find_apt_get
from tools.steps import run_step

NAMES = ("chromium", "chromium-browser", "google-chrome")


def ensure_chromium(log: Path) -> str | None:
    found = find_chromium()
    apt_get = find_apt_get()
    if found is not None or apt_get is None:
        return found
    options = ["-y", "--no-install-recommends", "--no-upgrade", "--no-remove"]
    try:
        run_step("updating the list of system packages", [*apt_get, "update"], log)
        run_step("installing chromium", [*apt_get, "install", *options, "chromium"], log)
    except SwitchyardError:
        return None
    return find_chromium()


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)
