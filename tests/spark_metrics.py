"""The names of Spark's own metrics that the dashboard relies on, as the driver of generation 1 serves them.

The Spark of tests/stream must show them, and docker/observability/prometheus.yaml must make of them what the dashboard
asks for.
"""

from __future__ import annotations

_DRIVER = "metrics_switchyard_driver"
_QUERY = f"{_DRIVER}_spark_streaming_generation_1"

SPARK_METRICS = (
    f"{_QUERY}_inputRate_total_Value",
    f"{_QUERY}_processingRate_total_Value",
    f"{_QUERY}_latency_Value",
    f"{_QUERY}_states_rowsTotal_Value",
    f"{_QUERY}_states_usedBytes_Value",
    f"{_DRIVER}_jvm_heap_used_Value",
    f"{_DRIVER}_jvm_heap_max_Value",
)
