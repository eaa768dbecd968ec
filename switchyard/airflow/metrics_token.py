"""A token for Prometheus in a file, renewed before it expires. It allows reading and nothing else.

It is signed with Airflow's own secret, so this runs where an Airflow process could run. It knows Airflow's simple auth
manager; with another one, log in as a user who may only read (docs/observability.md).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from switchyard.errors import InputError, SwitchyardError

USER, ROLE = "prometheus", "viewer"
LIFE_SECONDS = 24 * 3600
RENEW_SECONDS = LIFE_SECONDS / 4


def make_token(life_seconds: int = LIFE_SECONDS) -> str:
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.configuration import conf

    if not conf.get("api_auth", "jwt_secret", fallback=""):
        raise InputError("Airflow's jwt_secret is not known here: set AIRFLOW_HOME, or what the API server is told")
    manager = create_auth_manager()
    if not isinstance(manager, SimpleAuthManager):
        raise InputError("only Airflow's simple auth manager lets a token be made without a login: log in instead")
    return manager.generate_jwt(
        SimpleAuthManagerUser(username=USER, role=ROLE), expiration_time_in_seconds=life_seconds
    )


def write_token(path: Path, token: str, for_group: bool = False) -> None:
    """Replace the file in one step. From its first byte on, no other user can read it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o640 if for_group else 0o600)
        file.write(token)
    fresh.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep running, and renew it every six hours")
    parser.add_argument("--for-group", action="store_true", help="the group of this process may read the file too")
    options = parser.parse_args()
    try:
        write_token(options.file, make_token(), options.for_group)
        while options.keep:
            time.sleep(RENEW_SECONDS)
            write_token(options.file, make_token(), options.for_group)
    except SwitchyardError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
