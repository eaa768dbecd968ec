"""What docker-compose.yaml tells Airflow makes it send its metrics by OpenTelemetry, under the names we look for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from switchyard.layout import PROJECT

REPORT = """
from airflow._shared.observability.metrics import stats
from airflow._shared.observability.metrics.otel_logger import flush_otel_metrics
from airflow.observability.metrics.stats_utils import get_stats_factory
from airflow.configuration import conf
stats.initialize(factory=get_stats_factory(), export_legacy_names=conf.getboolean("metrics", "legacy_names_on"))
stats.incr("scheduler_heartbeat")
stats.gauge("executor.running_tasks", 3, tags={"executor_class_name": "LocalExecutor"})
flush_otel_metrics()
"""


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    """The address of something that takes reports as a collector does, and what it got."""
    got: list[ExportMetricsServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/metrics":
                got.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200 if self.path == "/v1/metrics" else 404)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


def told_by_compose() -> dict[str, str]:
    services = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text())["services"]
    told = services["airflow-scheduler"]["environment"]
    return {name: value for name, value in told.items() if name.startswith(("AIRFLOW__METRICS__", "OTEL_"))}


def test_airflow_sends_what_the_dashboard_shows(tmp_path: Path) -> None:
    told = told_by_compose()
    assert told["AIRFLOW__METRICS__OTEL_ON"] == "${OBSERVABILITY:-false}"
    with collector() as (url, got):
        own = {"AIRFLOW__METRICS__OTEL_ON": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        plain = {"OTEL_EXPORTER_OTLP_COMPRESSION": "none", "AIRFLOW_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        run = subprocess.run(
            [sys.executable, "-c", REPORT], env=os.environ | told | own | plain, capture_output=True, text=True
        )
    assert run.returncode == 0, run.stderr
    assert told["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otel-collector:4318"
    resources = [resource for request in got for resource in request.resource_metrics]
    metrics = {m.name: m for resource in resources for scope in resource.scope_metrics for m in scope.metrics}
    assert metrics["airflow.scheduler_heartbeat"].sum.is_monotonic
    points = metrics["airflow.executor.running_tasks"].gauge.data_points
    assert [point.as_double or point.as_int for point in points] == [3]
    assert {"service.name", "service.instance.id"} <= {pair.key for pair in resources[0].resource.attributes}
