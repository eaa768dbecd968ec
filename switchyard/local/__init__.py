"""One machine: the embedded broker, Airflow, `up` and `down`, `doctor`. Of drivers only the class archive's runs here.

It may import what stands below it. Of it, production runs `swap_client.py` and `kafka_settings.py`, for the command
line and the page. Start with `up.py`, then `supervisor.py`.
"""
