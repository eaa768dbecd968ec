"""The command line: it parses, calls and prints.

It may import everything but airflow and web. Start with `main.py`; `output.py` says how people see what is printed.
"""
