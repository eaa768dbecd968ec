"""The live page and its API. Knows no Airflow: who may do what is handed in."""
