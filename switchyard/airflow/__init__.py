"""What Airflow needs: operators, tasks, the watcher of the control topic. The only folder that imports airflow.

It may import every other folder. Start with `control_operators.py`, which takes commands, and
`generation_operator.py`, which runs a driver as a task.
"""
