"""Scales made from traces: which rows count, the search for the least error, what is written."""
