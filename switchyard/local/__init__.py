"""One machine: the embedded broker, Airflow, `up` and `down`, `doctor`. Nothing of it runs a driver.

It may import what stands below it; production does without it, but for the clients of the command line. Start with
`up.py`, then `supervisor.py`.
"""
