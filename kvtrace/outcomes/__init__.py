"""Was the answer right: outcomes of evaluations that people already have, in one table.

`formats/` has a file for each tool; `collect.py` makes the table, `table.py` reads it.
"""
