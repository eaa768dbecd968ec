"""What a driver is started with; how it is found, ended, and handed over from a spare. A task starts it: see airflow/.

It may import swap, tables and kafka; what set-up uses of it imports the standard library only. Start with
`submission.py`, the spark-submit call as data.
"""
