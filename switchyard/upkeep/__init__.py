"""What keeps the tables small and lawful: removal, retention, vacuum, short small tables, forgetting a person.

It may import drivers, swap, tables and kafka. Start with `maintenance.py`.
"""
