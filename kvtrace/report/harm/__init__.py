"""Harm: what each candidate does to attention, as every output tells it."""
