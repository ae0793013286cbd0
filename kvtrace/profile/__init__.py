"""Exact counts of every magnitude per cell: a trace's lossless summary for all static scales."""
