"""How a driver is started, found, ended, and handed over from a spare, on one machine and on a cluster.

It may import swap, tables and kafka; what set-up uses of it imports the standard library only. Start with
`submission.py`, the spark-submit call as data.
"""
