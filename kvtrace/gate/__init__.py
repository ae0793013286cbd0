"""Decide on a run by a written policy: within, breached or not enough coverage, segment by segment."""
