"""Install Java from Debian's packages where that can be done without asking anybody."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from switchyard.drivers.java import SUPPORTED_VERSIONS, JavaHome, find_java
from switchyard.errors import SwitchyardError
from tools.steps import run_step


def ensure_java(log: Path) -> JavaHome:
    """Return the Java that is there, or else a newly installed one, or else the sentence of what to do."""
    try:
        return find_java()
    except SwitchyardError as missing:
        apt_get = find_apt_get()
        if apt_get is None:
            raise
        if not _install(apt_get, log):
            raise missing from None
    return find_java()


def find_apt_get() -> list[str] | None:
    """Return the apt-get command with the rights to install, or None when there is none or it would ask."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return ["apt-get"]
    if shutil.which("sudo") is None:
        return None
    may_install = subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0
    return ["sudo", "-n", "apt-get"] if may_install else None


def _install(apt_get: list[str], log: Path) -> bool:
    """Try each supported version: a Debian release carries some of them."""
    try:
        run_step("updating the list of system packages", [*apt_get, "update"], log)
    except SwitchyardError:
        return False
    return any(_install_package(build_command(apt_get, version), log) for version in SUPPORTED_VERSIONS)


def build_command(apt_get: list[str], version: int) -> list[str]:
    """Add a package and change none that is there: other programs may be running on it."""
    options = ["-y", "--no-install-recommends", "--no-upgrade", "--no-remove"]
    return [*apt_get, "install", *options, f"openjdk-{version}-jre-headless"]


def _install_package(command: list[str], log: Path) -> bool:
    try:
        run_step(f"installing {command[-1]}", command, log)
    except SwitchyardError:
        return False
    return True
