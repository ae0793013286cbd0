"""Rules over a run: what its numbers say of each candidate."""
