"""How Airflow runs on one machine: its environment, its processes, its password. Imports no Airflow."""

from __future__ import annotations

import base64
import configparser
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from switchyard.drivers.processes import end_sessions, launch
from switchyard.errors import InputError, SwitchyardError
from switchyard.layout import PROJECT, Workspace
from switchyard.local.database import EMBEDDED, Database
from switchyard.settings import Settings

USER = "admin"
PREPARE_SECONDS = 120.0
AUTH_MANAGER = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

# The log servers are left out: the API server reads the log files of this machine itself.
COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


def password_file(workspace: Workspace) -> Path:
    return workspace.secrets / "airflow-passwords.json"


def airflow_url(settings: Settings) -> str:
    return settings.airflow_url or f"http://127.0.0.1:{settings.airflow_port}"


def require_airflow_here(settings: Settings) -> None:
    """Refuse to start or stop Airflow where the settings name one that something else starts."""
    if settings.airflow_url is not None:
        raise InputError(
            f"Airflow runs at {settings.airflow_url}, which SWITCHYARD_AIRFLOW_URL names: start and stop it there, or "
            "unset that variable"
        )


def airflow_environment(
    settings: Settings, project: Path = PROJECT, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the caller's environment and what an Airflow process of this installation needs."""
    workspace = settings.workspace
    inherited = dict(os.environ if base is None else base)
    # With loopback: tasks reach the API server even if the environment names a proxy.
    present = (inherited.get("NO_PROXY") or inherited.get("no_proxy") or "").split(",")
    no_proxy = ",".join(dict.fromkeys([*filter(None, present), "127.0.0.1", "localhost"]))
    options = {
        "CORE__DAGS_FOLDER": str(project / "dags"),
        "CORE__PLUGINS_FOLDER": str(project / "plugins"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        # More fields of a connection that hold secrets; Airflow itself hides only those named like a password.
        "CORE__SENSITIVE_VAR_CONN_NAMES": "key_pem,keystore_key,jaas_config,properties,user_info",
        # The task of a generation takes a slot for as long as its driver runs; the other DAGs share the rest.
        "CORE__PARALLELISM": str(settings.most_generations + 8),
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__EXECUTION_API_SERVER_URL": f"{airflow_url(settings)}/execution/",
        "CORE__AUTH_MANAGER": AUTH_MANAGER,
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(password_file(workspace)),
        "API__HOST": "127.0.0.1",
        "API__PORT": str(settings.airflow_port),
        "API__BASE_URL": airflow_url(settings),
        "API__WORKERS": "1",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "20",
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # Changed files are parsed at once anyway; parsing the others every 30 s, the default, takes a fifth of a core.
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
        "LOGGING__BASE_LOG_FOLDER": str(workspace.airflow / "logs"),
        # The tasks of a killed scheduler are found within half a minute; the default is five minutes.
        "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # A task waits for an API server that is being restarted, instead of failing.
        "WORKERS__EXECUTION_API_RETRIES": "12",
        "WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "5",
        # A swap is two runs one after the other, each of which waits for the scheduler.
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.25",
        # Another triggerer takes over the control watcher of a killed one only after this time.
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
        "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        **({} if names_database(inherited) else {"DATABASE__SQL_ALCHEMY_CONN": Database(workspace.database).address}),
    }
    return (
        inherited
        | {f"AIRFLOW__{name}": value for name, value in options.items()}
        | {
            "AIRFLOW_HOME": str(workspace.airflow),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, (str(project), inherited.get("PYTHONPATH"))))),
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
            # Tasks run in other folders, where a relative path would mean another place.
            "SWITCHYARD_ROOT": settings.layout.under() if settings.layout.is_local else settings.root,
            "SWITCHYARD_HOME": str(workspace.home),
        }
        | {f"SWITCHYARD_{name.upper()}": str(path.absolute()) for name, path in _login_files(settings).items()}
    )


def _login_files(settings: Settings) -> dict[str, Path]:
    names = ("kafka_properties", "kafka_control_properties")
    return {name: path for name in names if (path := getattr(settings, name)) is not None}


def names_database(environment: Mapping[str, str]) -> bool:
    """Return whether an external database is named: by address, by a command that prints it, or by a secret."""
    if any(environment.get(f"{DATABASE}{kind}") for kind in ("_CMD", "_SECRET")):
        return True
    named = environment.get(DATABASE, "")
    # The first is the embedded one, in the environment that `up` has made; the second is what Airflow itself tells a
    # task, so that it asks no database.
    return bool(named) and not named.startswith((EMBEDDED, "airflow-db-not-allowed"))


def ensure_password(workspace: Workspace) -> Path:
    # One that Airflow makes itself is printed into its log.
    path = password_file(workspace)
    _write_once(path, lambda file: json.dump({USER: secrets.token_urlsafe(12)}, file))
    return path


def ensure_keys(workspace: Workspace) -> Path:
    """Write the keys that all Airflow processes share into airflow.cfg: every child could read an environment."""
    path = workspace.airflow / "airflow.cfg"
    keys = configparser.ConfigParser(interpolation=None)
    keys.read_dict(
        {
            "core": {"fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()},
            "api": {"secret_key": secrets.token_hex(16)},
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
        }
    )
    _write_once(path, keys.write)
    return path


def _write_once(path: Path, write: Callable[[TextIO], object]) -> None:
    """Create the file with mode 0600 from the start; leave one that exists."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError), open(path, "x", opener=partial(os.open, mode=0o600)) as file:
        write(file)


def read_password(workspace: Workspace) -> str:
    path = password_file(workspace)
    try:
        return str(json.loads(path.read_text())[USER])
    except FileNotFoundError:
        raise SwitchyardError(
            f"there is no password of Airflow at {path}: name the folder that its API server uses in SWITCHYARD_HOME"
        ) from None


def prepare_database(settings: Settings, log: Path) -> None:
    """Prepare Airflow's database and connections in another process, unless that was done for the same settings."""
    ensure_keys(settings.workspace)
    ensure_password(settings.workspace)
    # An external database may be another one than last time.
    is_elsewhere, prepared = names_database(os.environ), _prepared_file(settings)
    if not is_elsewhere and prepared.exists() and prepared.read_text() == describe_database(settings):
        return
    command = [sys.executable, "-m", "switchyard.airflow.initialise"]
    process = launch(command, settings.workspace.airflow, log, airflow_environment(settings))
    with suppress(subprocess.TimeoutExpired):
        process.wait(PREPARE_SECONDS)
    end_sessions([process.pid], 3)
    if process.wait() != 0:
        raise SwitchyardError(f"Airflow's database could not be prepared; see {log}.")
    prepared.write_text(describe_database(settings))


def has_database(settings: Settings) -> bool:
    """Return whether an Airflow has been set up here, in whatever database."""
    return _prepared_file(settings).exists()


def _prepared_file(settings: Settings) -> Path:
    return settings.workspace.airflow / "initialised"


def describe_database(settings: Settings) -> str:
    """Describe what the database is prepared for. While it stays the same, a start skips that and saves seconds."""
    files = [path.stat() for path in _login_files(settings).values()]
    login = "".join(f" {file.st_mtime_ns} {file.st_size}" for file in files)
    database = "elsewhere" if names_database(os.environ) else Database(settings.workspace.database).cluster_id
    return f"{version('apache-airflow')} {settings.bootstrap} {settings.spark_master}{login} {database}"
