"""The live page and its HTTP API. It knows no Airflow: who may do what is handed in.

It may import what stands below it. Start with `api.py`; it reads through `health/read_model.py`.
"""
