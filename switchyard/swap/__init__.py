"""The product: from a control message to a decision, the state machine of a swap, its transitions and its history.

It may import tables and kafka. `control.py`, `state_machine.py` and `transitions.py` are pure. Start with `control.py`.
"""
