"""Write the secrets of docker-compose.yaml that are not there yet: `python3 docker/write_secrets.py [FOLDER]`.

Only the standard library. What is there stays: a new password would not be that of the database that exists.
"""

from __future__ import annotations

import base64
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).with_name("secrets")


def draw_secrets(postgres_password: str) -> dict[str, str]:
    """Each secret by the name of its file."""
    return {
        "postgres_password": postgres_password,
        "airflow_database": f"postgresql+psycopg2://airflow:{postgres_password}@postgres/airflow",
        "airflow_fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "airflow_jwt_secret": secrets.token_hex(32),
        "airflow_api_secret": secrets.token_hex(16),
        "grafana_password": secrets.token_urlsafe(16),
        # The login of an object store, in the form of the AWS credentials file; empty as long as none is used.
        "aws_credentials": "",
    }


def write_secrets(folder: Path) -> list[str]:
    """Return the names of the files that were written.

    Nobody but the owner gets into the folder. The files in it can be read by all: Docker mounts each of them alone, and
    the user in the container is another one than their owner.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    known = folder / "postgres_password"
    password = known.read_text() if known.exists() else secrets.token_urlsafe(24)
    missing = {name: text for name, text in draw_secrets(password).items() if not (folder / name).exists()}
    for name, text in missing.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    return sorted(missing)


def main(arguments: list[str]) -> int:
    written = write_secrets(Path(arguments[0]) if arguments else FOLDER)
    sys.stdout.write(f"secrets: wrote {', '.join(written)}\n" if written else "secrets: all are there\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
