"""Capture K and V from a running vLLM into a kvtrace trace."""
