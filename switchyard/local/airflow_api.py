"""A small client of Airflow's REST API: health, trigger, state, clear."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from switchyard.deadline import Deadline
from switchyard.errors import SwitchyardError
from switchyard.local.airflow import USER, airflow_url, read_password
from switchyard.settings import Settings

# Longer than the server itself waits for its database.
TIMEOUT_SECONDS = 35.0
HEALTH_SECONDS = 10.0
TOKEN_SECONDS = 600.0
# How long a failed call is repeated, and how often.
PATIENCE_SECONDS = 40.0
REPEAT_SECONDS = 1.0
NO_ANSWER = 0


class ApiError(SwitchyardError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_passing(self) -> bool:
        # The server did not answer, or reported that it failed itself: it may answer a second time.
        return self.status == NO_ANSWER or self.status >= 500


class AirflowApi:
    def __init__(self, url: str, user: str, read_secret: Callable[[], str]) -> None:
        # A proxy of the environment must not come between two processes of this machine, and a connection is not kept,
        # because the server may be restarted between two calls.
        limits = httpx.Limits(max_keepalive_connections=0)
        # SSL_CERT_FILE may name other certificate authorities all the same.
        trusted = httpx.create_ssl_context()
        self._http = httpx.Client(base_url=url, verify=trusted, trust_env=False, follow_redirects=True, limits=limits)
        self._user = user
        self._read_secret = read_secret
        self._token = ""
        self._token_expiry = Deadline(0)

    @classmethod
    def of(cls, settings: Settings) -> AirflowApi:
        return cls(airflow_url(settings), USER, lambda: read_password(settings.workspace))

    def read_health(self) -> dict[str, Any]:
        return dict(self._send("GET", "/api/v2/monitor/health", None, {}, HEALTH_SECONDS))

    def healthy_parts(self) -> set[str]:
        """Return the names of the parts that report healthy; none while the server does not answer."""
        try:
            health = self.read_health()
        except (SwitchyardError, ValueError):
            return set()
        return {name for name, part in health.items() if (part or {}).get("status") == "healthy"}

    def is_dag_known(self, dag_id: str) -> bool:
        return self._call("GET", f"/dags/{quote(dag_id)}", missing_ok=True) is not None

    def set_paused(self, dag_id: str, is_paused: bool) -> None:
        self._call("PATCH", f"/dags/{quote(dag_id)}", {"is_paused": is_paused})

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any], note: str | None = None) -> None:
        """Start a run. Triggering the same run id again changes nothing."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf), "note": note}
        try:
            self._call("POST", f"/dags/{quote(dag_id)}/dagRuns", body)
        except ApiError as error:
            if error.status != 409:
                raise

    def run_state(self, dag_id: str, run_id: str) -> str | None:
        run = self._call("GET", self._run_path(dag_id, run_id), missing_ok=True)
        return None if run is None else str(run["state"])

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Run the task and its downstream tasks again, whatever their state; a finished run is reopened."""
        body = {
            "dry_run": False,
            "only_failed": False,
            "reset_dag_runs": True,
            "task_ids": [task_id],
            "dag_run_id": run_id,
            "include_downstream": True,
        }
        self._call("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", body)

    def _run_path(self, dag_id: str, run_id: str) -> str:
        return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"

    def _call(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        """Ask again when the server or its database did not answer. Every call here is safe to repeat."""
        deadline = Deadline(PATIENCE_SECONDS)
        while True:
            try:
                return self._send(method, f"/api/v2{path}", body, {"Authorization": f"Bearer {self._bearer()}"})
            except ApiError as error:
                if missing_ok and error.status == 404:
                    return None
                if not error.is_passing or deadline.has_passed:
                    raise
            time.sleep(REPEAT_SECONDS)

    def _bearer(self) -> str:
        if self._token_expiry.has_passed:
            credentials = {"username": self._user, "password": self._read_secret()}
            self._token = self._send("POST", "/auth/token", credentials, {})["access_token"]
            self._token_expiry.restart(TOKEN_SECONDS)
        return self._token

    def _send(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], timeout_seconds: float | None = None
    ) -> Any:
        try:
            answer = self._http.request(
                method, path, json=body, headers=headers, timeout=timeout_seconds or TIMEOUT_SECONDS
            )
        except httpx.HTTPError as error:
            raise ApiError(NO_ANSWER, f"Airflow does not answer at {self._http.base_url}: {error}") from None
        if answer.is_error:
            status, detail = answer.status_code, answer.text[:500]
            raise ApiError(status, f"Airflow answered {status} to {method} {path}: {detail}")
        return answer.json() if answer.content else None
