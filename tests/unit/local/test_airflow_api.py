"""The client against servers that fail: what passes is asked again, what is wrong is said at once."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from switchyard.local import airflow_api
from switchyard.local.airflow import ensure_password
from switchyard.local.airflow_api import AirflowApi, ApiError
from switchyard.settings import Settings


@contextmanager
def server(*answers: int | str, document: Mapping[str, object] | None = None) -> Iterator[AirflowApi]:
    """Gives these answers to calls, one each: a status, or `hang` or `close` for none at all; then 200 for ever."""
    left = list(answers)
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = left.pop(0) if left else 200
            if answer == "hang":
                ended.wait(5)
            elif answer == "close":
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self._answer(int(answer))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(201)

        def _answer(self, status: int) -> None:
            body = json.dumps(document or {"access_token": "t", "state": "running"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
        yield AirflowApi(f"http://127.0.0.1:{listener.server_port}", "admin", lambda: "secret")
        ended.set()
        listener.shutdown()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_api, "REPEAT_SECONDS", 0.01)
    monkeypatch.setattr(airflow_api, "TIMEOUT_SECONDS", 0.2)


@pytest.mark.parametrize("fault", [500, 503, "hang", "close"])
def test_what_passes_is_asked_again(fault: int | str) -> None:
    with server(fault, fault) as api:
        assert api.run_state("dag", "run") == "running"


@pytest.mark.parametrize("status", [401, 403, 422])
def test_what_is_wrong_is_said_at_once(status: int) -> None:
    with server(status) as api, pytest.raises(ApiError, match=f"Airflow answered {status} to GET"):
        api.run_state("dag", "run")


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_api, "PATIENCE_SECONDS", 0.1)
    with server(*(["close"] * 1000)) as api, pytest.raises(ApiError, match="Airflow does not answer at http"):
        api.run_state("dag", "run")
    with pytest.raises(ApiError, match=r"at http://127\.0\.0\.1:1: \[Errno \d+\] Connection refused$"):
        AirflowApi("http://127.0.0.1:1", "admin", lambda: "secret").run_state("dag", "run")


def test_a_run_that_is_not_there_is_none() -> None:
    with server(404) as api:
        assert api.run_state("dag", "run") is None


@pytest.mark.parametrize("fault", [500, "close"])
def test_health_of_a_server_that_fails_is_empty(fault: int | str) -> None:
    with server(fault) as api:
        assert api.healthy_parts() == set()


def test_an_airflow_elsewhere_is_asked_where_the_settings_say(tmp_path: Path) -> None:
    with server() as listening:
        url = str(listening._http.base_url)
        settings = Settings(root=str(tmp_path), airflow_url=url, airflow_port=1)
        ensure_password(settings.workspace)
        assert AirflowApi.of(settings).run_state("dag", "run") == "running"
