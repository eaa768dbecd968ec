"""The streaming job of a generation and the batch jobs. With `joins.py` the only place that imports pyspark.

It may import health, upkeep, drivers, swap, tables and kafka. Start with `lifecycle.py`, the life of a driver, then
`query.py` and `runner.py`, its query and its micro-batches, and `watch_loop.py`, its main thread.
"""
