"""The Delta tables through delta-rs: no JVM is needed to read, decide or commit.

It may import the foundation only. Start with `store.py`, where every commit is made, and `sink.py`, where the rows of a
micro-batch are written.
"""
