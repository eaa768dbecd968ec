"""The product: from a control message to a decision, the history of all swaps, the rules, and the transitions.

It may import tables and kafka. A message is parsed in `control_message.py` and decided in `decision.py`; the flip is in
`flip.py`. Start with `transitions.py`: it draws the states of a request and of a generation.
"""
