"""The live page and its HTTP API. It knows no Airflow: who may do what is handed in.

It may import what stands below it: the command line's neighbours, health, tables. Start with `api.py`.
"""
