"""Switchyard keeps a live join of two Kafka topics in a Delta table and swaps it while it runs."""

__version__ = "0.1.0"
