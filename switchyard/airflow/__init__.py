"""What Airflow needs: the submit operator, DAG defaults, the tasks. The only place that imports airflow."""
