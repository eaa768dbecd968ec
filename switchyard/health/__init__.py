"""What is checked, found and repaired, and the figures that are shown about it.

It may import upkeep, drivers, swap, tables and kafka. Start with `checks.py`; it is pure.
"""
