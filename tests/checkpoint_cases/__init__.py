"""Checkpoints and traces as people reported them, small, with the right answer to each.

Every case is rebuilt from a public report (no file or wording of theirs): shapes are real, values made up.
`python -m checkpoint_cases` prints case → answer; `tests/scales/test_checkpoint_cases.py` asks each.
"""
