"""One machine: the embedded broker, Airflow, `up` and `down`, `doctor`. Of drivers only the class archive's runs here.

It may import what stands below it; production does without it, but for the clients of the command line. Start with
`up.py`, then `supervisor.py`.
"""
