"""The product: from a control message to a decision, the history of all swaps, the rules, and the transitions.

It may import tables and kafka. Pure are `control.py`, `history.py`, `flip_rules.py` and `retirement_rules.py`.
Start with `transitions.py`: it draws the states of a request and of a generation.
"""
