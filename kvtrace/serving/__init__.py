"""What a load generator and a server's /metrics say of served requests, in one table.

`formats/` has a file for each tool; `collect.py` makes the table, `table.py` reads it; `goodput.py` counts
useful answers by a contract that was written beforehand.
"""
