"""What is checked, found and repaired, and the status and metrics that show it.

It may import upkeep, drivers, swap, tables and kafka. Start with `checks.py`; it is pure.
"""
